#include <filesystem>
#include <random>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "import/import.h"
#include "import/read_tree.h"
#include "support.h"

using namespace precog;

namespace {

const std::filesystem::path kExamples = std::filesystem::path(PRECOG_SOURCE_DIR) / "tests" / "data" / "imports";

Imported example(const std::string& file, bool model_wanted = true) {
  auto made = import_file(kExamples / file, file, "", model_wanted);
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text()));
  return *made;
}
std::string problem(const std::string& text, const std::string& kind = "") {
  auto made = import_text(text, "file", kind);
  return made ? "" : made.error().text();
}
bool names(const std::vector<std::string>& list, const std::string& one) { return std::find(list.begin(), list.end(), one) != list.end(); }

}  // namespace

TEST_CASE("DeepSpeedSaysBatchPrecisionAndZero") {
  const Imported made = example("deepspeed_zero2.json");
  CHECK(made.kind == "deepspeed");
  CHECK(made.request["batch"] == 4);
  CHECK(made.request["micro_batches"] == 8);
  CHECK(made.request["precision"] == "deepspeed-bf16");
  CHECK(made.request["plan"]["fsdp"] == "zero2");
  CHECK(made.request["optimizer"] == "adamw");
  CHECK(made.request["optimizer_impl"] == "fused");
  CHECK(made.request["clip_grad_norm"] == 1.0);
  CHECK(made.not_taken == std::vector<std::string>{"house_rules.cost_centre"});
  CHECK(names(made.quiet, "steps_per_print"));
  CHECK(names(made.quiet, "zero_optimization.reduce_bucket_size"));
}

TEST_CASE("DeepSpeedSendsGradientsInTheModelsTypeUnlessItIsSaid") {
  const auto precision = [](const std::string& type, const std::string& wire) {
    auto made = import_text(R"({"train_micro_batch_size_per_gpu": 1, ")" + type + R"(": {"enabled": true}, "communication_data_type": ")" + wire + R"("})", "f");
    return made ? made->request["precision"].get<std::string>() : made.error().text();
  };
  CHECK(precision("bf16", "bf16") == "deepspeed-bf16");
  CHECK(precision("bf16", "fp32") == "deepspeed-bf16+gradients-fp32");
  CHECK(precision("bf16", "fp16") == "deepspeed-bf16+gradients-fp16");
  CHECK(precision("fp16", "fp16") == "deepspeed-fp16");
  CHECK(precision("fp16", "fp32") == "deepspeed-fp16+gradients-fp32");
  CHECK(precision("bf16", "int8").find("known: fp32, fp16, bf16") != std::string::npos);
}

TEST_CASE("DeepSpeedOffloadIsTakenOverAndWhatCannotBeIsRefused") {
  const Imported made = example("deepspeed_offload.json");
  CHECK(made.request["plan"]["offload"] == "optimizer");
  CHECK(made.request["global_batch"] == 256);
  CHECK_FALSE(made.request.contains("batch"));
  CHECK(problem(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})").find("offload_param") != std::string::npos);
  CHECK(problem(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}})").find("nvme") != std::string::npos);
  CHECK(problem(R"({"zero_optimization": {"stage": 4}})").find("stages 0 to 3") != std::string::npos);
  CHECK(problem(R"({"zero_optimization": {"stage": 1, "zero_quantized_weights": true}})").find("ZeRO++") != std::string::npos);
  CHECK(problem(R"({"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}})").find("exclude each other") != std::string::npos);
  CHECK(problem(R"({"train_batch_size": 8, "optimizer": {"type": "OneBitAdam"}})").find("OneBitAdam") != std::string::npos);
  const auto lamb = import_text(R"({"train_batch_size": 8, "zero_optimization": {"stage": 0}, "optimizer": {"type": "Lamb"}})", "f");
  REQUIRE(lamb.has_value());
  CHECK(lamb->request["optimizer"] == "lamb");
  CHECK(lamb->request["optimizer_impl"] == "fused");
}

TEST_CASE("AutoSaysNothing") {
  auto made = import_text(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}})", "f");
  REQUIRE(made.has_value());
  CHECK_FALSE(made->request.contains("batch"));
  CHECK(names(made->quiet, "train_batch_size"));
  CHECK(made->not_taken.empty());
}

TEST_CASE("MegatronsScriptIsReadNotRun") {
  const Imported made = example("megatron_gpt.sh");
  CHECK(made.kind == "megatron");
  const Json& r = made.request;
  CHECK(r["model"]["family"] == "gpt2");
  CHECK(r["model"]["architecture"]["hidden"] == 6144);
  CHECK(r["model"]["architecture"]["intermediate"] == 4 * 6144);
  CHECK(r["model"]["architecture"]["vocab"] == 50257);
  CHECK(r["pad_vocabulary"] == 128 * 8);
  CHECK(r["cluster"]["gpus"] == 8);
  CHECK(r["plan"]["tp"] == 8);
  CHECK(r["plan"]["sp"] == true);
  CHECK(r["recompute"] == "selective");
  CHECK(r["precision"] == "fp16-master");
  CHECK(r["stack"] == "megatron");
  CHECK(made.not_taken == std::vector<std::string>{"--our-own-logger"});
}

TEST_CASE("MegatronsYamlOfFlags") {
  const Imported made = example("megatron_llama.yaml");
  const Json& r = made.request;
  CHECK(r["model"]["family"] == "llama");
  CHECK(r["model"]["architecture"]["kv_heads"] == 8);
  CHECK(r["plan"]["vpp"] == 4);
  CHECK(r["plan"]["cp"] == 2);
  CHECK(r["plan"]["fsdp"] == "zero1");
  CHECK(r["precision"] == "bf16-master+gradients-bf16+te-fp8-delayed");
  CHECK(r["stack"] == "te");
  CHECK(made.not_taken.empty());
}

TEST_CASE("AModelThatIsNotDescribedIsAnErrorUnlessItIsNotWanted") {
  const std::string text = "--tensor-model-parallel-size 2 --micro-batch-size 1 --seq-length 2048 --bf16";
  CHECK(problem(text).find("--num-layers") != std::string::npos);
  CHECK(import_text(text, "f", "", false).has_value());
}

TEST_CASE("TorchtitanSaysDegreesAndPolicy") {
  const Imported made = example("torchtitan_llama3.toml");
  CHECK(made.kind == "torchtitan");
  const Json& r = made.request;
  CHECK(r["model"] == "llama3-8b");
  CHECK(r["plan"]["fsdp"] == "hybrid");
  CHECK(r["plan"]["replicate"] == 2);
  CHECK(r["plan"]["dp"] == 16);
  CHECK(r["precision"] == "fsdp-bf16-fp32reduce");
  CHECK(r["recompute"] == "per-op");
  CHECK(r["attention"] == "sdpa-causal");
  CHECK(r["seq"] == 8192);
  CHECK(r["run"]["steps"] == 1000);
  CHECK(made.not_taken.empty());
}

TEST_CASE("AccelerateAndItsDeepSpeedFile") {
  const Imported fsdp = example("accelerate_fsdp.yaml");
  CHECK(fsdp.kind == "accelerate");
  CHECK(fsdp.request["precision"] == "fsdp-bf16");
  CHECK(fsdp.request["plan"]["fsdp"] == "hybrid");
  CHECK(fsdp.request["cluster"]["gpus"] == 16);
  CHECK(fsdp.request["cluster"]["gpus_per_node"] == 8);
  CHECK(fsdp.request["recompute"] == "full");
  const Imported linked = example("accelerate_deepspeed.yaml");
  CHECK(linked.request["plan"]["fsdp"] == "zero2");
  CHECK(linked.request["precision"] == "deepspeed-bf16");
  CHECK(linked.request["batch"] == 4);
  REQUIRE(linked.notes.size() == 1);
  CHECK(linked.notes[0].find("house_rules.cost_centre") != std::string::npos);
}

TEST_CASE("TheTrainersArguments") {
  const Imported made = example("trainer_arguments.json");
  CHECK(made.kind == "trainer");
  const Json& r = made.request;
  CHECK(r["model"] == "meta-llama/Meta-Llama-3-8B");
  CHECK(r["batch"] == 2);
  CHECK(r["micro_batches"] == 16);
  CHECK(r["precision"] == "fsdp-bf16");
  CHECK(r["plan"]["fsdp"] == "full");
  CHECK(r["recompute"] == "full");
  CHECK(r["seq"] == 4096);
  CHECK(made.not_taken == std::vector<std::string>{"neftune_noise_alpha"});
}

TEST_CASE("LightningsTrainerSection") {
  const Imported made = example("lightning.yaml");
  CHECK(made.kind == "lightning");
  const Json& r = made.request;
  CHECK(r["precision"] == "amp-bf16");
  CHECK(r["cluster"]["gpus"] == 16);
  CHECK(r["micro_batches"] == 2);
  CHECK(r["batch"] == 64);
  CHECK(r["optimizer"] == "sgd-momentum");
  CHECK(names(made.not_taken, "model.class_path"));
}

TEST_CASE("TheRequestWinsOverItsConfigurations") {
  Json request = {{"from", "deepspeed_zero2.json"}, {"model", "gpt2"}, {"batch", 2}, {"plan", {{"fsdp", "zero3"}}}, {"cluster", {{"gpu", "h100-sxm"}, {"gpus", 4}}}};
  auto made = with_imports(request, "request", kExamples);
  REQUIRE(made.has_value());
  CHECK((*made)["batch"] == 2);
  CHECK((*made)["micro_batches"] == 8);
  CHECK((*made)["plan"]["fsdp"] == "zero3");
  CHECK((*made)["model"] == "gpt2");
  CHECK_FALSE(made->contains("from"));
  REQUIRE(made->contains("imported"));
  CHECK(import_notes((*made)["imported"]) == std::vector<std::string>{"deepspeed_zero2.json: not taken over: house_rules.cost_centre"});
}

TEST_CASE("FilesThatContradictEachOtherAreAnError") {
  Json request = {{"from", {"deepspeed_zero2.json", "deepspeed_offload.json"}}, {"model", "gpt2"}};
  auto made = with_imports(request, "request", kExamples);
  REQUIRE_FALSE(made.has_value());
  CHECK(made.error().text().find("micro_batches") != std::string::npos);
  request["micro_batches"] = 8;  // said by the request itself: no contradiction left there
  CHECK(with_imports(request, "request", kExamples).error().text().find("micro_batches") == std::string::npos);
}

TEST_CASE("AKindCanBeForcedAndMustBeKnown") {
  CHECK(problem("a: 1\n").find("--from-kind") != std::string::npos);
  CHECK(problem("a: 1\n", "deepsped").find("deepspeed") != std::string::npos);
  auto forced = import_text("{}", "f", "deepspeed");
  REQUIRE(forced.has_value());
  CHECK(forced->kind == "deepspeed");
}

TEST_CASE("FlagsOfScripts") {
  const ShellFlags made = parse_flags("N=4\nA=\"--b-c $N --d\"\nrun.py $A --e=${M:-7} --f 1 2 \\\n  --g -1 # --h\n--i '$N'");
  CHECK(made.flags["b-c"] == "4");
  CHECK(made.flags["d"] == true);
  CHECK(made.flags["e"] == "7");
  CHECK(made.flags["f"] == Json::array({"1", "2"}));
  CHECK(made.flags["g"] == "-1");
  CHECK_FALSE(made.flags.contains("h"));
  CHECK(made.flags["i"] == "$N");
  CHECK(made.programs == std::vector<std::string>{"run.py"});
}

TEST_CASE("DamagedConfigurationsNeverCrash") {
  std::mt19937 random(7);
  for (const auto& entry : std::filesystem::directory_iterator(kExamples)) {
    const std::string text = *read_text_file(entry.path());
    for (int round = 0; round < 150; ++round) {
      std::string damaged = text;
      for (int change = static_cast<int>(random() % 6); change >= 0; --change) {
        const std::size_t at = random() % damaged.size();
        switch (random() % 4) {
          case 0: damaged[at] = static_cast<char>(random() % 256); break;
          case 1: damaged.erase(at, random() % 20); break;
          case 2: damaged.insert(at, std::string(1 + random() % 3, "{}[]:-\"'$\n\t#&*!|>%@`,"[random() % 22])); break;
          default: damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 40));
        }
        if (damaged.empty()) damaged = " ";
      }
      for (const std::string& kind : {std::string(), import_kinds()[random() % import_kinds().size()]})
        if (auto made = import_text(damaged, "file", kind); !made) CHECK_FALSE(made.error().problems.empty());
    }
  }
}

TEST_CASE("NestingAndAliasesHaveLimits") {
  CHECK_FALSE(parse_yaml(std::string(2000, '['), "f").has_value());
  CHECK_FALSE(parse_toml("a = " + std::string(5000, '['), "f").has_value());
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  auto made = parse_yaml(bomb, "f");
  REQUIRE_FALSE(made.has_value());
  CHECK(made.error().text().find("aliases") != std::string::npos);
}

TEST_CASE("DataParallelismThatGivesWayIsSaid") {
  Json request = {{"from", "torchtitan_llama3.toml"}, {"cluster", {{"gpu", "h100-sxm"}, {"gpus", 64}}}};
  const auto notes = [&] { return import_notes(with_imports(request, "request", kExamples).value()["imported"]); };
  REQUIRE(notes().size() == 1);
  CHECK(notes()[0].find("data parallelism of 16 gives way") != std::string::npos);
  request["cluster"] = {{"gpu", "h100-sxm"}};
  CHECK(notes().empty());
}

TEST_CASE("VariablesThatAScriptDoesNotSetAreErrorsUnlessTheyAreSaidBesideIt") {
  const std::string model = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --bf16 ";
  CHECK(problem(model + "--tensor-model-parallel-size $TP --micro-batch-size 4").find("--tensor-model-parallel-size: is '$TP', which the file does not set: set it there, or say --tp") != std::string::npos);
  CHECK(problem(model + "--micro-batch-size ${MBS}").find("--batch") != std::string::npos);
  CHECK(problem(model + "--micro-batch-size 4 --ffn-hidden-size $((4 * H))").find("say the model") != std::string::npos);
  CHECK(problem(model + "--micro-batch-size 4 --recompute-num-layers $N").find("$N") != std::string::npos);
  CHECK(problem(model + "--micro-batch-size 4 --train-iters $STEPS").empty());  // only the length of the run
  const Json beside = {{"plan", {{"tp", 2}}}, {"batch", 1}};
  auto said = import_text(model + "--tensor-model-parallel-size $TP --micro-batch-size $MBS", "f", "", true, {}, beside);
  REQUIRE_MESSAGE(said.has_value(), (said ? "" : said.error().text()));
  CHECK(said->notes.empty());
  CHECK(import_text("--num-layers $L --hidden-size $H --micro-batch-size 1 --seq-length 128", "f", "", false).has_value());
}

TEST_CASE("LightningOnSeveralNodesSaysTheirGpus") {
  const std::string text = "trainer:\n  devices: auto\n  num_nodes: 2\n  precision: bf16-mixed\n";
  CHECK(problem(text).find("trainer.devices: does not say how many GPUs each of the 2 nodes has") != std::string::npos);
  CHECK(problem("trainer:\n  devices: -1\n  num_nodes: 4\n").find("4 nodes") != std::string::npos);
  CHECK(import_text(text, "f", "", true, {}, {{"cluster", {{"gpus", 16}}}}).has_value());
  CHECK(import_text(text, "f", "", true, {}, {{"cluster", "dgx-h100:2"}}).has_value());
  auto one = import_text("trainer:\n  devices: auto\n", "f");
  REQUIRE(one.has_value());
  REQUIRE(one->notes.size() == 1);
  CHECK(one->notes[0].find("--gpus") != std::string::npos);
}

TEST_CASE("EnginesThatContradictTheirConfigurationAreErrors") {
  const std::string head = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\n";
  const auto accelerate = [&](const std::string& precision, const std::string& inside) {
    return head + "mixed_precision: " + precision + "\ndeepspeed_config:\n  deepspeed_config_file:\n    train_micro_batch_size_per_gpu: 1\n" + inside;
  };
  const std::string bf16 = "    bf16:\n      enabled: true\n", open = "    bf16:\n      enabled: auto\n", off = "    bf16:\n      enabled: false\n";
  CHECK(problem(accelerate("fp16", bf16)).find("mixed_precision: is fp16, and its DeepSpeed file says deepspeed-bf16") != std::string::npos);
  CHECK(problem(accelerate("bf16", off)).find("neither fp16 nor bf16") != std::string::npos);
  for (const std::string& inside : {bf16, open, std::string()}) {
    auto agreed = import_text(accelerate("bf16", inside), "f");
    REQUIRE_MESSAGE(agreed.has_value(), (agreed ? "" : agreed.error().text()));
    CHECK(agreed->request["precision"] == "deepspeed-bf16");
    CHECK(agreed->notes.empty());
  }
  const std::string arguments = R"({"per_device_train_batch_size": 1, "output_dir": "o", )";
  CHECK(problem(arguments + R"("fsdp": "full_shard", "deepspeed": {"zero_optimization": {"stage": 2}}})").find("takes one of them") != std::string::npos);
  CHECK(problem(arguments + R"("fp16": true, "deepspeed": {"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}})").find("fp16: is true, and its DeepSpeed file says deepspeed-bf16") != std::string::npos);
  auto left = import_text(arguments + R"("bf16": true, "deepspeed": {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}})", "f");
  REQUIRE(left.has_value());
  CHECK(left->request["precision"] == "deepspeed-bf16");
}

TEST_CASE("DeepSpeedsSectionsWantObjects") {
  for (const char* wrong : {R"("zero_optimization": 2)", R"("zero_optimization": true)", R"("bf16": true)", R"("optimizer": "Adam")", R"("zero_optimization": {"stage": 2, "offload_optimizer": "cpu"})",
                            R"("activation_checkpointing": [1])"})
    CHECK_MESSAGE(problem(std::string(R"({"train_batch_size": 8, )") + wrong + "}").find("a section, {...}, is wanted") != std::string::npos, wrong);
  CHECK(problem(R"({"train_batch_size": 8, "zero_optimization": {}, "bf16": null, "optimizer": {}})").empty());
}

TEST_CASE("BatchesAreCalledAsTheFileCallsThem") {
  const Json request = {{"from", "deepspeed_offload.json"}, {"model", "gpt2"}};
  const Json made = with_imports(request, "request", kExamples).value();
  CHECK(batches_said_by(made["imported"]).find("global_batch is train_batch_size of deepspeed_offload.json") != std::string::npos);
  Json own = request;
  own["global_batch"] = 64;
  CHECK(batches_said_by(with_imports(own, "request", kExamples).value()["imported"]).find("global_batch") == std::string::npos);
  CHECK(batches_said_by(Json(3)).empty());
  const auto open = import_text(R"({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": true}})", "ds.json");
  REQUIRE(open.has_value());
  CHECK(open->said_by.at("batch") == "train_micro_batch_size_per_gpu (\"auto\")");
}

TEST_CASE("MegatronGathersWeightsInFp8AndSharesCheckpoints") {
  const std::string flags = "python pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --bf16 ";
  const auto made = [&](const std::string& more) {
    auto out = import_text(flags + more, "f");
    REQUIRE_MESSAGE(out.has_value(), (out ? "" : out.error().text()));
    return out->request;
  };
  CHECK(made("--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer")["precision"] == "bf16-master+te-fp8-delayed+fp8-all-gather");
  CHECK(problem(flags + "--fp8-format hybrid --fp8-param-gather").find("use-distributed-optimizer") != std::string::npos);
  CHECK(problem(flags + "--fp8-param-gather --use-distributed-optimizer").find("fp8-format") != std::string::npos);
  CHECK(made("--recompute-granularity full --recompute-method uniform --distribute-saved-activations")["plan"]["share_checkpoints"] == true);
  CHECK(made("--use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.4")["plan"]["offload_fraction"] == 0.4);
}

TEST_CASE("TorchtitansZeroBubbleV") {
  const std::string toml = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 8\nseq_len = 8192\n[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = ";
  const auto made = import_text(toml + "\"ZBVZeroBubble\"\n", "f");
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text()));
  CHECK(made->request["plan"]["schedule"] == "zbv");
  CHECK_FALSE(made->request["plan"].contains("vpp"));
  CHECK(problem(toml + "\"InterleavedZeroBubble\"\n").find("ZBVZeroBubble") != std::string::npos);
}

TEST_CASE("SixteenBitsUnderFsdp") {
  const auto made = [](const std::string& text) {
    auto out = import_text(text, "f");
    REQUIRE_MESSAGE(out.has_value(), (out ? "" : out.error().text()));
    return out->request;
  };
  const auto accelerate = [&](const std::string& precision, const std::string& strategy) {
    return made("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nmixed_precision: " + precision + "\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy + "\n");
  };
  CHECK(accelerate("fp16", "FULL_SHARD")["precision"] == "fsdp-fp16");
  CHECK(accelerate("fp16", "FULL_SHARD")["plan"]["fsdp"] == "full");
  for (const char* precision : {"bf16", "fp16"}) {
    const Json whole = accelerate(precision, "NO_SHARD");
    CHECK(whole["precision"] == std::string("fsdp-") + precision);
    CHECK(whole["plan"]["fsdp"] == "hybrid");
    CHECK(whole["plan"]["shard_size"] == 1);
  }
  CHECK(accelerate("no", "NO_SHARD")["plan"]["fsdp"] == "none");
  CHECK(made(R"({"per_device_train_batch_size": 1, "output_dir": "o", "fsdp": "full_shard", "fp16": true})")["precision"] == "fsdp-fp16");
  // Lightning's parameters are gathered in fp32 and cast by autocast; only gradients travel in fp16.
  CHECK(made("trainer:\n  devices: 8\n  strategy: fsdp\n  precision: 16-mixed\n")["precision"] == "amp-fp16+gradients-fp16");
  CHECK(made("trainer:\n  devices: 8\n  strategy: fsdp\n  precision: bf16-mixed\n")["precision"] == "amp-bf16+gradients-bf16");
}

TEST_CASE("AccelerateThatContradictsItselfIsRefused") {
  const auto yaml = [](const std::string& rest) { return problem("compute_environment: LOCAL_MACHINE\n" + rest, "accelerate"); };
  CHECK(yaml("distributed_type: 'NO'\nnum_processes: 8\n").find("starts one process") != std::string::npos);
  CHECK(yaml("distributed_type: 'NO'\nnum_processes: 1\n").empty());
  CHECK(yaml("distributed_type: MULTI_GPU\nnum_processes: 9\nnum_machines: 2\n").find("multiple of num_machines = 2") != std::string::npos);
  CHECK(yaml("distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machines: 0\n").find("num_machines") != std::string::npos);
  const std::string engine = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: {zero_optimization: {stage: 2}, bf16: {enabled: true}}\n  zero_stage: ";
  CHECK(yaml(engine + "3\n").find("zero_stage: is 3, and its DeepSpeed file says zero2") != std::string::npos);
  CHECK(yaml(engine + "2\n").empty());
}

TEST_CASE("APartOfTheOptimizerOnTheHostIsTakenOver") {
  const auto with = [](int stage, const char* ratio) {
    return import_text(fmt::format(R"({{"train_batch_size": 8, "zero_optimization": {{"stage": {}, "offload_optimizer": {{"device": "cpu", "ratio": {}}}}}}})", stage, ratio), "f").value().request["plan"];
  };
  CHECK(with(3, "0.3")["offload_fraction"] == 0.3);
  CHECK(with(3, "0.3")["offload"] == "optimizer");
  CHECK_FALSE(with(3, "1.0").contains("offload_fraction"));
  CHECK_FALSE(with(2, "0.3").contains("offload_fraction"));  // stage 3's alone
}

TEST_CASE("ZeroPlusPlusIsStageThrees") {
  const auto plan = [](const std::string& more) { return import_text(R"({"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, )" + more + "}}", "f").value().request["plan"]; };
  CHECK(plan(R"("zero_hpz_partition_size": 8)")["zero3"]["secondary_ranks"] == 8);
  CHECK_FALSE(plan(R"("zero_hpz_partition_size": 1)")["zero3"].contains("secondary_ranks"));
  CHECK(plan(R"("zero_quantized_weights": true)")["zero3"]["quantised_weights"] == true);
  CHECK(plan(R"("zero_quantized_gradients": true)")["zero3"]["quantised_gradients"] == true);
  CHECK(plan(R"("zero_quantized_gradients": false)")["zero3"].empty());
  CHECK(problem(R"({"zero_optimization": {"stage": 2, "zero_quantized_weights": true}})").find("it needs stage 3, not 2") != std::string::npos);
  CHECK(problem(R"({"zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": true}})").find("not modelled") != std::string::npos);
}

TEST_CASE("CheckpointsOnTheHostOrSharedOut") {
  const auto deepspeed = [](const std::string& more) { return import_text(R"({"train_batch_size": 8, "zero_optimization": {"stage": 1}, "activation_checkpointing": {)" + more + "}}", "f").value(); };
  const Imported host = deepspeed(R"("cpu_checkpointing": true)");
  CHECK(host.request["recompute"] == "full");
  CHECK(host.request["plan"]["offload"] == "activations");
  const Imported alone = deepspeed(R"("partition_activations": true)");
  CHECK_FALSE(alone.request["plan"].contains("share_checkpoints"));
  CHECK(alone.notes.size() >= 1);
  const auto split = import_text(R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}, "activation_checkpointing": {"partition_activations": true}})", "f");
  CHECK(split.value().request["plan"]["share_checkpoints"] == true);
  const auto lightning = import_text("trainer:\n  devices: 8\n  precision: bf16-mixed\n  strategy:\n    class_path: lightning.pytorch.strategies.DeepSpeedStrategy\n    init_args:\n      stage: 3\n      offload_optimizer: true\n      cpu_checkpointing: true\n", "f");
  CHECK(lightning.value().request["plan"]["offload"] == "optimizer+activations");
  CHECK(lightning.value().request["recompute"] == "full");
}

TEST_CASE("ZeroThreeIsTakenOverWithHowFarItGathersAhead") {
  auto made = import_text(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 2e7, "stage3_max_live_parameters": 9223372036854775807,
                             "stage3_param_persistence_threshold": 1000, "reduce_bucket_size": "auto"}})", "f");
  REQUIRE(made.has_value());
  const Json expected = {{"prefetch_elements", 20'000'000}, {"live_elements", 1'000'000'000'000'000}, {"persistent_elements", 1000}};
  CHECK(made->request["plan"]["zero3"] == expected);
  CHECK(std::any_of(made->notes.begin(), made->notes.end(), [](const std::string& note) { return note.find("reduce_bucket_size is left to whoever starts the job") != std::string::npos; }));
  CHECK(problem(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "stage3_max_reuse_distance": -1}})").find("stage3_max_reuse_distance") != std::string::npos);
  const auto two = import_text(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 2e7}})", "f");
  REQUIRE(two.has_value());
  CHECK_FALSE(two->request["plan"].contains("zero3"));
}

TEST_CASE("MegatronSaysTheCapacityOfExperts") {
  const auto plan = [](const std::string& flags) {
    auto made = import_text("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --num-experts 8 --micro-batch-size 1 --bf16 " + flags, "f", "megatron", false);
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text()));
    return made->request["plan"];
  };
  CHECK(plan("--moe-expert-capacity-factor 1.25 --moe-token-drop-policy position")["expert_capacity"] == 1.25);
  CHECK_FALSE(plan("--moe-expert-capacity-factor 1.25").contains("expert_padding"));
  CHECK(plan("--moe-expert-capacity-factor 0.5 --moe-pad-expert-input-to-capacity")["expert_padding"] == true);
  const auto refused = import_text("--num-layers 4 --num-experts 8 --micro-batch-size 1 --bf16 --moe-pad-expert-input-to-capacity", "f", "megatron", false);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().text().find("needs --moe-expert-capacity-factor") != std::string::npos);
}

TEST_CASE("GridsOfExpertsAreTakenOver") {
  const auto plan = [](const std::string& flags) {
    auto made = import_text("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --num-experts 8 --micro-batch-size 1 --bf16 " + flags, "f", "megatron", false);
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text()));
    return made->request["plan"];
  };
  const Json split = plan("--tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8 --expert-tensor-parallel-size 2");
  CHECK(split["tp"] == 4);
  CHECK(split["ep"] == 8);
  CHECK(split["etp"] == 2);
  CHECK(plan("--expert-tensor-parallel-size 2")["etp"] == 2);
  CHECK_FALSE(plan("--tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8").contains("etp"));  // as layers are
  // With a pipeline, and beside activations.
  CHECK(plan("--pipeline-model-parallel-size 2 --use-distributed-optimizer --optimizer-cpu-offload --expert-model-parallel-size 2")["offload"] == "optimizer");
  CHECK(plan("--use-distributed-optimizer --optimizer-cpu-offload --cpu-offloading-num-layers 2")["offload"] == "optimizer+activations");
  auto titan = import_text("[parallelism]\ntensor_parallel_degree = 2\nexpert_parallel_degree = 4\n[training]\nlocal_batch_size = 1\n", "f", "torchtitan", false);
  REQUIRE_MESSAGE(titan.has_value(), (titan ? "" : titan.error().text()));
  CHECK(titan->request["plan"]["etp"] == 1);
}
