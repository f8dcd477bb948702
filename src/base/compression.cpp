#include "base/compression.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "base/ensure.h"

namespace precog {

bool is_zstd(std::string_view bytes) { return bytes.starts_with("\x28\xb5\x2f\xfd"); }

Result<std::string> compress(std::string_view bytes, int level) {
  if (level < 1 || level > 19) return fail("level", fmt::format("is {}; from 1 (fast) to 19 (small)", level));
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ensure(context != nullptr, "a compression context can be made");
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);  // so that a flipped bit is seen
  std::size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), bytes.data(), bytes.size());
  ensure(!ZSTD_isError(size), "a buffer of ZSTD_compressBound bytes is enough");
  out.resize(size);
  return out;
}

Result<std::string> decompress(std::string_view bytes, std::size_t limit, const std::string& where) {
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  ensure(context != nullptr, "a decompression context can be made");
  // A frame's window is what the decoder allocates: 128 MiB is what zstd's own program accepts without being asked.
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, 27);
  if (!is_zstd(bytes)) return fail(where, "is not compressed with Zstandard");
  std::string out;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::size_t rest = 1;  // zero exactly at the end of a frame
  while (in.pos < in.size || rest != 0) {
    // The frame's own word for its size is a hint at most: room grows as content really arrives.
    std::size_t begin = out.size(), room = std::min<std::size_t>(std::max<std::size_t>(begin, 1u << 16), limit - begin + 1);
    out.resize(begin + room);
    ZSTD_outBuffer piece{out.data() + begin, room, 0};
    rest = ZSTD_decompressStream(context.get(), &piece, &in);
    out.resize(begin + piece.pos);
    if (ZSTD_isError(rest)) return fail(where, fmt::format("is damaged: {}", ZSTD_getErrorName(rest)));
    if (out.size() > limit) return fail(where, fmt::format("is larger than {} bytes when decompressed", limit));
    if (rest != 0 && in.pos == in.size && piece.pos < room)
      return fail(where, "is cut short: its compressed data ends in the middle");
  }
  return out;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

Result<std::string> gunzip(std::string_view bytes, std::size_t limit, const std::string& where) {
  z_stream stream{};
  ensure(inflateInit2(&stream, 15 + 16) == Z_OK, "a gzip decoder can be made");  // 15: any window; 16: gzip's frame
  std::unique_ptr<z_stream, decltype(&inflateEnd)> owner(&stream, inflateEnd);
  std::string out;
  int status = Z_OK;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(std::min<std::size_t>(bytes.size(), 0xffffffffu));
  while (status != Z_STREAM_END) {
    const std::size_t begin = out.size(), room = std::min<std::size_t>(std::max<std::size_t>(begin, 1u << 16), limit - begin + 1);
    out.resize(begin + room);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + begin);
    stream.avail_out = static_cast<uInt>(room);
    status = inflate(&stream, Z_NO_FLUSH);
    out.resize(begin + room - stream.avail_out);
    if (out.size() > limit) return fail(where, fmt::format("is larger than {} bytes when decompressed", limit));
    if (status == Z_STREAM_END && stream.avail_in > 0) status = inflateReset(&stream);  // one member after the other is a file too
    if (status == Z_BUF_ERROR || (status == Z_OK && stream.avail_in == 0 && stream.avail_out > 0)) return fail(where, "is cut short: its compressed data ends in the middle");
    if (status != Z_OK && status != Z_STREAM_END) return fail(where, fmt::format("is damaged: {}", stream.msg ? stream.msg : "not gzip"));
  }
  return out;
}

Result<std::string> opened(std::string bytes, std::size_t limit, const std::string& where) {
  if (is_zstd(bytes)) return decompress(bytes, limit, where);
  if (is_gzip(bytes)) return gunzip(bytes, limit, where);
  return bytes;
}

}  // namespace precog
