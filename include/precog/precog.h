/* precog's C interface: the whole program as a few functions over JSON text. Python is built on it; other languages can be.
 *
 * A request goes in as JSON and a report comes out as JSON, byte for byte what `precog predict --json` prints. Not here: flags,
 * views (text, HTML, traces), anything that writes a file.
 *
 * Every function that can fail returns a precog_status and sets its outputs: the answer when it is done, else an error as JSON:
 *   {"code": "wrong_input", "message": "...", "problems": [{"where": "request.batch", "message": "..."}]}
 * No exception leaves, nothing is printed, no state is shared: any function may run on any thread at any time, a catalog serves
 * any number of threads at once. Texts are UTF-8. What comes back is freed with precog_free.
 *
 * The interface only grows: a function is never removed or changed, PRECOG_ABI_VERSION counts the additions. */
#ifndef PRECOG_PRECOG_H
#define PRECOG_PRECOG_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRECOG_ABI_VERSION 1

#if defined(__GNUC__)
#define PRECOG_API __attribute__((visibility("default")))
#else
#define PRECOG_API
#endif

/* The exit codes of the program. */
typedef int precog_status;
enum { PRECOG_DONE = 0, PRECOG_OUR_BUG = 1, PRECOG_WRONG_INPUT = 2, PRECOG_DOES_NOT_FIT = 3 /* the report is still given */ };

typedef struct precog_catalog precog_catalog; /* everything under data/, read once */

PRECOG_API int precog_abi_version(void);
PRECOG_API const char* precog_version(void); /* "0.1.0"; not to be freed */

/* `data_dir` is a folder like the repository's data/. On failure *catalog is NULL and *error says why. */
PRECOG_API precog_status precog_open(const char* data_dir, precog_catalog** catalog, char** error);
PRECOG_API void precog_close(precog_catalog* catalog);

/* `request` is a job as in a job file, `size` its length in bytes. Paths in it are relative to `folder`, or to the process's own
 * where that is NULL. *answer is a report, or an error. */
PRECOG_API precog_status precog_predict(const precog_catalog* catalog, const char* request, size_t size, const char* folder,
                                        char** answer);

/* The same job at several precisions. "precision" may be absent (every one the GPU has hardware for) or a list of names. "advise":
 * true, or the name of the precision to start from, adds "advice"; "all": true tries unlisted recipes too. */
PRECOG_API precog_status precog_compare(const precog_catalog* catalog, const char* request, size_t size, const char* folder,
                                        char** answer);

/* `runs` is the content of a file of measured runs (JSON lines or CSV), `name` its path (for messages, and because paths in it are
 * relative to it), `by` the groups, with commas ("precision,gpu"), or NULL. Runs on as many threads as there are cores. */
PRECOG_API precog_status precog_validate(const precog_catalog* catalog, const char* runs, size_t size, const char* name,
                                         const char* by, char** answer);

/* The names of one kind: {"names": [...]}. Kinds: gpus, clusters, networks, hosts, precisions, models, software. */
PRECOG_API precog_status precog_names(const precog_catalog* catalog, const char* kind, char** answer);

/* Zstandard. On failure *out is NULL, *out_size 0 and *error says why. `limit` bounds the decompressed size. */
PRECOG_API precog_status precog_compress(const void* bytes, size_t size, int level, void** out, size_t* out_size, char** error);
PRECOG_API precog_status precog_decompress(const void* bytes, size_t size, size_t limit, void** out, size_t* out_size, char** error);

PRECOG_API void precog_free(void* memory); /* whatever a function above returned; NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
