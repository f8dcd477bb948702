// Errors as values, for the places where the outside enters (files, flags, requests).
// An Error carries every problem found, each with where it is and what would be right.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

namespace precog {

struct Problem {
  std::string where;    // file, field or flag; empty when the message says it
  std::string message;  // what is wrong and what would be right
};

struct Error {
  std::vector<Problem> problems;

  std::string text() const {
    std::string out;
    for (const Problem& problem : problems) {
      if (!out.empty()) out += '\n';
      if (!problem.where.empty()) out += problem.where + ": ";
      out += problem.message;
    }
    return out;
  }
};

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(std::string where, std::string message) {
  return tl::unexpected<Error>(Error{{{std::move(where), std::move(message)}}});
}
inline tl::unexpected<Error> fail(std::vector<Problem> problems) {
  return tl::unexpected<Error>(Error{std::move(problems)});
}

}  // namespace precog

// Unwraps a Result into `name`, or returns its error from the enclosing function.
#define PRECOG_TRY(name, expression)                                      \
  auto name##_result = (expression);                                      \
  if (!name##_result) return tl::unexpected(std::move(name##_result.error())); \
  auto name = std::move(*name##_result)
