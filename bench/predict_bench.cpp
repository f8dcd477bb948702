// How long a prediction takes, warm: the catalog is loaded, the request parsed, the whole pipeline runs each time.
// Peak memory of the process is printed beside the largest.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include <benchmark/benchmark.h>

#include "predict/fit.h"
#include "predict/predict.h"

namespace {

using namespace precog;

const Catalog& catalog() {
  static const Catalog kCatalog = [] {
    auto loaded = load_catalog(PRECOG_DATA_DIR);
    if (!loaded) {
      std::fputs(loaded.error().text().c_str(), stderr);
      std::exit(2);
    }
    return std::move(*loaded);
  }();
  return kCatalog;
}

void run(benchmark::State& state, const char* text) {
  auto request = parse_request(Json::parse(text), catalog(), "bench");
  if (!request) return state.SkipWithError(request.error().text().c_str());
  std::vector<double> stages(stage_names().size());
  for (auto _ : state) {
    auto prediction = predict(*request, catalog());
    benchmark::DoNotOptimize(prediction);
    for (std::size_t i = 0; i < stages.size(); ++i) stages[i] += prediction->stage_times[i].value * 1e3;
  }
  for (std::size_t i = 0; i < stages.size(); ++i)
    state.counters[stage_names()[i] + "_ms"] = benchmark::Counter(stages[i], benchmark::Counter::kAvgIterations);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

void resnet50(benchmark::State& state) {
  run(state, R"({"model": "resnet50", "batch": 256, "precision": "amp-fp16", "cluster": {"gpu": "v100-sxm2-32gb", "gpus": 1}})");
}
void llama3_8b(benchmark::State& state) {
  run(state, R"({"model": "llama3-8b", "batch": 1, "seq": 2048, "precision": "bf16", "cluster": {"gpu": "h100-sxm", "gpus": 8}})");
}
void llama3_405b_on_16384_gpus(benchmark::State& state) {
  run(state, R"({"model": "llama3-405b", "batch": 1, "seq": 8192, "precision": "bf16", "cluster": {"gpu": "h100-sxm", "gpus": 16384}})");
}
void llama3_405b_on_16384_gpus_amp(benchmark::State& state) {
  run(state, R"({"model": "llama3-405b", "batch": 1, "seq": 8192, "precision": "amp-bf16", "cluster": {"gpu": "h100-sxm", "gpus": 16384}})");
}
// The plan of the Llama 3 report's pre-training at 16,384 GPUs (context 8192): tensor 8, pipeline 16, data 128, optimizer states sharded.
void llama3_405b_pipelined_on_16384_gpus(benchmark::State& state) {
  run(state, R"({"model": "llama3-405b", "batch": 1, "seq": 8192, "global_batch": 2048, "precision": "bf16-master",
                 "cluster": {"gpu": "h100-sxm", "gpus": 16384}, "plan": {"tp": 8, "sp": true, "pp": 16, "fsdp": "zero1"}})");
}
void llama3_405b_pipelined_on_65536_gpus(benchmark::State& state) {  // four times the replicas: the same time and memory
  run(state, R"({"model": "llama3-405b", "batch": 1, "seq": 8192, "global_batch": 8192, "precision": "bf16-master",
                 "cluster": {"gpu": "h100-sxm", "gpus": 65536}, "plan": {"tp": 8, "sp": true, "pp": 16, "fsdp": "zero1"}})");
}
// A job that does not fit, with the search for what would make it fit (cpu: all threads).
void what_makes_it_fit(benchmark::State& state, const char* text) {
  const Json request = Json::parse(text);
  for (auto _ : state) benchmark::DoNotOptimize(predict_job(request, catalog(), "bench"));
}
void what_makes_gpt2_medium_fit(benchmark::State& state) {
  what_makes_it_fit(state, R"({"model": "gpt2-medium", "batch": 8, "precision": "fp32", "cluster": {"gpu": "rtx-4090", "gpus": 1}})");
}
void what_makes_llama3_70b_fit_on_64(benchmark::State& state) {
  what_makes_it_fit(state, R"({"model": "llama3-70b", "batch": 1, "seq": 8192, "precision": "amp-bf16", "cluster": {"gpu": "h100-sxm", "gpus": 64}})");
}
void load_the_catalog(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(load_catalog(PRECOG_DATA_DIR));
}

BENCHMARK(resnet50)->Unit(benchmark::kMillisecond);
BENCHMARK(llama3_8b)->Unit(benchmark::kMillisecond);
BENCHMARK(llama3_405b_on_16384_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(llama3_405b_on_16384_gpus_amp)->Unit(benchmark::kMillisecond);
BENCHMARK(llama3_405b_pipelined_on_16384_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(llama3_405b_pipelined_on_65536_gpus)->Unit(benchmark::kMillisecond);
BENCHMARK(what_makes_gpt2_medium_fit)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
BENCHMARK(what_makes_llama3_70b_fit_on_64)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
BENCHMARK(load_the_catalog)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
