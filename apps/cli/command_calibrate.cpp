#include "cli.h"

#include <fmt/format.h>

#include "calibrate/calibrate.h"

namespace precog::cli {

Result<Output> run_calibrate(const Arguments& arguments, const Context& context) {
  if (arguments.gpu.empty()) return fail("--gpu", "is missing: the GPU that the operators were measured on, as precog gpus names it");
  PRECOG_TRY(gpu, context.catalog.gpu(arguments.gpu));
  const ArchitectureProfile* physics = context.catalog.profile.find(gpu->architecture);
  FittedProfile base;
  CalibrateOptions options;
  if (!arguments.base.empty()) {
    PRECOG_TRY(json, read_json_file(arguments.base));
    PRECOG_TRY(parsed, parse_fitted_profile(json, arguments.base));
    if (parsed.architecture != gpu->architecture)
      return fail("--base", fmt::format("was fitted on {} ({}); {} is {}", parsed.gpu, parsed.architecture, gpu->name, gpu->architecture));
    base = std::move(parsed);
    options.base = &base;
  }
  PRECOG_TRY(measurements, read_measurements(arguments.measurements, *gpu, *physics));
  if (context.progress) options.progress = [](std::size_t done, std::size_t all) { fmt::print(stderr, "\r{} of {} families fitted", done, all); };
  const Calibration calibration = calibrate(measurements, *gpu, *physics, options);
  if (context.progress) fmt::print(stderr, "\r\x1b[K");
  Output out;
  if (!arguments.out.empty()) out.files.push_back({arguments.out, to_json_text(calibration.profile)});
  if (!arguments.report.empty()) out.files.push_back({arguments.report, to_markdown(calibration, measurements, *gpu)});
  out.text = arguments.json ? json_document(to_json(calibration, measurements)) : to_text(calibration, measurements);
  return out;
}

}  // namespace precog::cli
