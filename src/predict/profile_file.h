// What was measured on one GPU (data/profiles/<gpu>.json), read when it is first asked for: a request needs one of these files
// at most, and the largest is megabytes. Not the coefficients that every prediction needs: those are CostProfile.
// Copies share what was read; reading is safe from several threads.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "cost/residual.h"

namespace precog {

class ProfileFile {
 public:
  // `gpu` and `architecture` are those of data/gpus that the file's name stands for; what it says inside must agree.
  ProfileFile(std::string gpu, std::string architecture, std::filesystem::path file);

  const std::string& gpu() const { return gpu_; }
  const std::string& architecture() const { return architecture_; }
  const Result<FittedProfile>& read() const;

 private:
  struct Reading;
  Result<FittedProfile> parse() const;

  std::string gpu_, architecture_;
  std::filesystem::path file_;
  std::shared_ptr<Reading> reading_;
};

}  // namespace precog
