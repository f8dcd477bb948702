// What surrounds the step: the host, fitted costs, the data loader, the length of the run.
#include "predict/request_reader.h"

namespace precog {

// A name of data/hosts, or the file that `precog host` wrote.
void RequestReader::read_host() {
  const std::string name = root_.text("host").value_or("default");
  if (!name.ends_with(".json")) {
    request_.host = look_up(root_, "host", catalog_.host(name));
    return;
  }
  auto json = read_json_file(folder_ / name);
  if (!json) return root_.problem("host", json.error().text());
  auto parsed = parse_host(*json, name, catalog_.host_files);
  if (!parsed) {
    for (const Problem& problem : parsed.error().problems) root_.problem("host", problem.where + ": " + problem.message);
    return;
  }
  request_.own_host = std::make_shared<const HostSpec>(std::move(*parsed));
  request_.host = request_.own_host.get();
  request_.own_host_path = name;
}

void RequestReader::read_input() {
  auto input = root_.object("input");
  if (!input) return;
  InputSpec out;
  if (auto seconds = input->number("seconds_per_batch", 0, 1e5)) out.per_batch = {*seconds};
  else if (!input->has("seconds_per_batch")) input->problem("seconds_per_batch", "is missing: what one worker needs for one batch, in seconds");
  if (auto workers = input->integer("workers", 0, 4096)) out.workers = static_cast<int>(*workers);
  else if (!input->has("workers")) input->problem("workers", "is missing: processes that prepare batches; 0 where the training loop does it itself");
  if (auto prefetch = input->integer("prefetch", 1, 1024)) out.prefetch = static_cast<int>(*prefetch);
  if (auto bytes = input->number("bytes_per_batch", 0, 1e13)) out.copied = Bytes{static_cast<std::int64_t>(*bytes)};
  if (auto bytes = input->number("gpu_bytes_per_batch", 0, 1e15)) out.on_gpu = Bytes{static_cast<std::int64_t>(*bytes)};
  input->reject_unknown_keys();
  request_.input = out;
}

// A file that precog calibrate wrote, or "none": physics alone. Without one, what data/profiles has for this GPU.
void RequestReader::read_profile() {
  const auto path = root_.text("profile");
  if (!request_.gpu || (path && *path == "none")) return;
  if (!path) {
    auto found = catalog_.fitted_for(*request_.gpu);
    if (!found) {
      problems_.insert(problems_.end(), found.error().problems.begin(), found.error().problems.end());
      return;
    }
    request_.fitted = *found;
    if (request_.fitted) request_.fitted_from = fmt::format("data/profiles/{}.json", request_.fitted->gpu);
    return;
  }
  auto json = read_json_file(folder_ / *path);
  auto parsed = json ? parse_fitted_profile(*json, *path) : Result<FittedProfile>(tl::unexpected(json.error()));
  if (!parsed) {
    problems_.insert(problems_.end(), parsed.error().problems.begin(), parsed.error().problems.end());
    return;
  }
  if (parsed->architecture != request_.gpu->architecture)
    return root_.problem("profile", fmt::format("was fitted on {} ({}); {} is {}, and corrections carry over inside one architecture only", parsed->gpu,
                                                parsed->architecture, request_.gpu->name, request_.gpu->architecture));
  if (const auto fitted_on = catalog_.gpu(parsed->gpu); !fitted_on || *fitted_on != request_.gpu)
    request_.warnings.push_back(fmt::format("{} was fitted on {}: its corrections are carried over to {}, by its datasheet", *path, parsed->gpu, request_.gpu->name));
  request_.own_fitted = std::make_shared<const FittedProfile>(std::move(*parsed));
  request_.fitted = request_.own_fitted.get();
  request_.fitted_from = *path;
}

void RequestReader::read_run() {
  request_.price_usd_per_gpu_hour = root_.number("price_usd_per_gpu_hour", 0, 1e6);
  auto run = root_.object("run");
  if (!run) return;
  RunLength& length = request_.run;
  length.tokens = run->number("tokens", 1, 1e18);
  length.samples = run->number("samples", 1, 1e18);
  length.epochs = run->number("epochs", 1e-6, 1e9);
  length.steps = run->number("steps", 1, 1e15);
  length.dataset_samples = run->number("dataset_samples", 1, 1e18);
  length.mtbf_hours = run->number("mtbf_hours", 1e-3, 1e12);
  length.checkpoint_s = run->number("checkpoint_s", 0, 1e9);
  length.restart_s = run->number("restart_s", 0, 1e9);
  const int given = length.tokens.has_value() + length.samples.has_value() + length.epochs.has_value() + length.steps.has_value();
  if (given > 1) run->problem("tokens", "and samples, epochs, steps exclude each other: give one");
  if (length.mtbf_hours && given == 0) run->problem("mtbf_hours", "needs the length of the run: tokens, samples, epochs or steps");
  for (const auto& [key, value] : {std::pair{"checkpoint_s", length.checkpoint_s}, {"restart_s", length.restart_s}})
    if (value && !length.mtbf_hours) run->problem(key, "needs mtbf_hours: without failures there are no checkpoints to take");
  if (length.epochs && !length.dataset_samples) run->problem("dataset_samples", "is missing: how many samples an epoch has");
  if (length.tokens && request_.model && !request_.model->language)
    run->problem("tokens", fmt::format("does not apply: {} takes {}; give samples or epochs", request_.model->name, request_.model->unit));
  run->reject_unknown_keys();
}

}  // namespace precog
