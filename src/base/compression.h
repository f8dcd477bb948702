// Zstandard, for files that are kept compressed (captured graphs, measurements), and gzip, read only. Whole buffers in memory; nothing
// here reads files. What comes from outside is never trusted: its size is bounded before anything is allocated.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace precog {

bool is_zstd(std::string_view bytes);  // begins with the mark of a Zstandard frame (RFC 8878, 3.1.1)

// `level` is 1 (fast) to 19 (small); anything else is an error.
Result<std::string> compress(std::string_view bytes, int level = 12);

// All frames of `bytes`, one after the other. Truncated, damaged or larger than `limit` once open: an error that names `where`.
Result<std::string> decompress(std::string_view bytes, std::size_t limit, const std::string& where);

bool is_gzip(std::string_view bytes);
Result<std::string> gunzip(std::string_view bytes, std::size_t limit, const std::string& where);

// What a file holds, whichever of the two it is compressed with, if any.
Result<std::string> opened(std::string bytes, std::size_t limit, const std::string& where);

}  // namespace precog
