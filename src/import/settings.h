// A framework's configuration as a flat list of settings, "zero_optimization.stage" and the like, and a ledger of them: what was
// taken over, what is known to change nothing here, what nobody knows. A setting that was never asked for ends up in the last.
// It knows no framework. Values keep their types; a text that says a number or a truth counts as one, as flags are texts.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace precog {

class Settings {
 public:
  // `prefix` stands before a name in messages: "--" of flags.
  Settings(const Json& tree, std::string file, std::string prefix = "");

  // Whether it is there and says something: neither null nor DeepSpeed's "auto" (filled in by whoever starts the job).
  bool has(std::string_view key) const;
  std::optional<std::int64_t> whole(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<bool> truth(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  const Json* raw(std::string_view key);
  // An object as it was written, at a dotted key; all that is in it is marked as taken: whoever asks reads it by other means.
  const Json* tree(std::string_view key);
  bool on(std::string_view key) { return truth(key).value_or(false); }

  // Known, and of no concern to time or memory; '*' is any number of characters.
  void harmless(std::initializer_list<const char*> patterns);
  // Cannot be modelled: an error where it is switched on (true, or a text other than none and no).
  void refuse(std::string_view key, std::string why);
  void problem(std::string_view key, std::string message);
  void note(std::string message) { notes_.push_back(std::move(message)); }
  // A section wants an object: anything else that says something is an error.
  void section(std::string_view key);
  // A whole number becomes a field of the request, which messages can then call by the setting's name.
  std::optional<std::int64_t> give(Json& request, const char* field, std::string_view key);

  const std::string& file() const { return file_; }
  std::string shown(std::string_view key) const { return prefix_ + std::string(key); }
  std::vector<Problem>& problems() { return problems_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::map<std::string, std::string>& said_by() const { return said_by_; }
  void said_by(const std::string& field, std::string name) { said_by_[field] = std::move(name); }
  std::vector<std::string> quiet() const;      // harmless ones, and those that say nothing
  std::vector<std::string> not_taken() const;  // nobody asked for these
  std::vector<std::string> keys() const;

 private:
  enum class Use { none, taken, harmless };
  struct Setting {
    std::string key;
    Json value;
    Use use = Use::none;
  };
  void flatten(const Json& tree, const std::string& at, int depth);
  const Setting* look(std::string_view key) const;
  Setting* find(std::string_view key);  // marks it as taken

  Json tree_;
  std::string file_, prefix_;
  std::vector<Setting> settings_;
  std::vector<Problem> problems_;
  std::vector<std::string> notes_;
  std::map<std::string, std::string> said_by_;
};

}  // namespace precog
