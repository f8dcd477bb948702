#include "predict/profile_file.h"

#include <mutex>
#include <optional>

#include <fmt/format.h>

namespace precog {

struct ProfileFile::Reading {
  std::once_flag once;
  std::optional<Result<FittedProfile>> profile;
};

ProfileFile::ProfileFile(std::string gpu, std::string architecture, std::filesystem::path file)
    : gpu_(std::move(gpu)), architecture_(std::move(architecture)), file_(std::move(file)), reading_(std::make_shared<Reading>()) {}

const Result<FittedProfile>& ProfileFile::read() const {
  std::call_once(reading_->once, [&] { reading_->profile = parse(); });
  return *reading_->profile;
}

Result<FittedProfile> ProfileFile::parse() const {
  PRECOG_TRY(json, read_json_file(file_));
  PRECOG_TRY(profile, parse_fitted_profile(json, file_.string()));
  if (profile.gpu != gpu_) return fail(file_.string() + ": gpu", fmt::format("is '{}'; a profile's file is named after its GPU", profile.gpu));
  if (profile.architecture != architecture_)
    return fail(file_.string() + ": architecture", fmt::format("is '{}'; data/gpus/{}.json says '{}'", profile.architecture, gpu_, architecture_));
  return profile;
}

}  // namespace precog
