/* KVFerry's transfer engine for C: register memory, connect to another process, move blocks between the two.
 *
 * Every function that can fail returns a kvf_code; kvf_error_message() then says what happened, to whom, and what to
 * do. Handles are thread-safe; each is freed once, by the function named after it, in any order: a peer, plan or
 * transfer may outlive its engine, its calls then fail with KVF_CANCELLED. A NULL handle is KVF_INVALID_ARGUMENT, or 0,
 * "" or nothing where no code is returned; an event descriptor is then -1. Times are milliseconds. Nothing here throws
 * or ends the process. The same engine for C++: kvferry/engine.h. Example: examples/c/move_blocks.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef KVFERRY_C_API
#define KVFERRY_C_API __attribute__((visibility("default")))
#endif

typedef enum kvf_code { /* the meanings are those of kvferry::Code in kvferry/status.h */
                        KVF_OK = 0,
                        KVF_INVALID_ARGUMENT = 1,
                        KVF_NOT_FOUND = 2,
                        KVF_OUT_OF_RANGE = 3,
                        KVF_PERMISSION_DENIED = 4,
                        KVF_STALE = 5,
                        KVF_UNAVAILABLE = 6,
                        KVF_PEER_LOST = 7,
                        KVF_DEADLINE_EXCEEDED = 8,
                        KVF_CANCELLED = 9,
                        KVF_PROTOCOL_ERROR = 10,
                        KVF_IDENTITY_MISMATCH = 11,
                        KVF_UNAUTHENTICATED = 12,
                        KVF_RESOURCE_EXHAUSTED = 13,
                        KVF_UNSUPPORTED = 14,
                        KVF_DATA_CORRUPT = 15,
                        KVF_INTERNAL = 16,
                        KVF_CONFLICT = 17
} kvf_code;

typedef enum kvf_op { KVF_READ = 1, KVF_WRITE = 2 } kvf_op; /* seen from the caller: read = remote to local */
typedef enum kvf_access { KVF_REMOTE_READ = 1, KVF_REMOTE_WRITE = 2 } kvf_access; /* bit set */
typedef enum kvf_priority { KVF_HIGH = 0, KVF_NORMAL = 1, KVF_LOW = 2 } kvf_priority;

typedef struct kvf_options kvf_options;
typedef struct kvf_engine kvf_engine;
typedef struct kvf_peer kvf_peer;
typedef struct kvf_plan kvf_plan;
typedef struct kvf_transfer kvf_transfer;
typedef struct kvf_message kvf_message;

typedef struct kvf_region { /* registered memory, ours or a peer's */
  uint32_t id;
  uint32_t generation; /* grows each time an id is reused */
  uint64_t length;     /* bytes */
} kvf_region;

typedef struct kvf_piece { /* one contiguous run to move; offsets and length in bytes */
  uint32_t local_region;   /* ids */
  uint32_t remote_region;
  uint64_t local_offset;
  uint64_t remote_offset;
  uint64_t length;
} kvf_piece;

typedef struct kvf_submit_options { /* start from KVF_SUBMIT_DEFAULTS */
  int64_t timeout_ms;               /* when unfinished pieces fail; negative: the engine's transfer_timeout_s */
  kvf_priority priority;
  const void* notify; /* sent to the peer as a message once all data is visible there; at most 1 MiB; NULL: none */
  size_t notify_length;
} kvf_submit_options;
#define KVF_SUBMIT_DEFAULTS \
  { -1, KVF_NORMAL, NULL, 0 }

/* "0.1.0" */
KVFERRY_C_API const char* kvf_version(void);
/* "peer_lost", ... */
KVFERRY_C_API const char* kvf_code_name(kvf_code code);
/* Why the last failed call of this thread failed; valid until this thread's next call. */
KVFERRY_C_API const char* kvf_error_message(void);

/* --- options: names and values as in docs/configuration.md, section transfer: "bind", "tcp_streams", ... ---------- */
KVFERRY_C_API kvf_options* kvf_options_new(void); /* NULL: out of memory */
/* KVF_NOT_FOUND: no such option. KVF_INVALID_ARGUMENT: not a value of its type. Lists are separated by commas. */
KVFERRY_C_API kvf_code kvf_options_set(kvf_options* options, const char* name, const char* value);
KVFERRY_C_API void kvf_options_free(kvf_options* options);

/* --- engine ------------------------------------------------------------------------------------------------------ */
/* Listens at once. `options` NULL: the defaults. */
KVFERRY_C_API kvf_code kvf_engine_create(const kvf_options* options, kvf_engine** engine);
/* Fails what is under way with KVF_CANCELLED and joins all threads. */
KVFERRY_C_API void kvf_engine_free(kvf_engine* engine);
/* Where peers connect to and who this is (32 hex digits); valid as long as the engine. */
KVFERRY_C_API const char* kvf_engine_endpoint(const kvf_engine* engine);
KVFERRY_C_API const char* kvf_engine_node_id(const kvf_engine* engine);

/* Makes [data, data + length) reachable for peers; the memory stays valid until kvf_unregister has returned. The same
 * once more is the same region, which goes with the last of as many kvf_unregister. */
KVFERRY_C_API kvf_code kvf_register(kvf_engine* engine, void* data, uint64_t length, const char* name, unsigned access,
                                    kvf_region* region);
/* Zeroed memory of the engine's own, which peers of this host map and copy without system calls. */
KVFERRY_C_API kvf_code kvf_allocate(kvf_engine* engine, uint64_t length, const char* name, unsigned access,
                                    kvf_region* region, void** data);
/* After KVF_OK no transfer touches the memory any more. KVF_DEADLINE_EXCEEDED: one still does; call again. */
KVFERRY_C_API kvf_code kvf_unregister(kvf_engine* engine, kvf_region region, int64_t timeout_ms);
/* Opaque bytes (at most 64 KiB) that peers get at first contact and by kvf_peer_refresh. */
KVFERRY_C_API kvf_code kvf_set_metadata(kvf_engine* engine, const void* metadata, size_t length);

/* --- peers -------------------------------------------------------------------------------------------------------- */
/* `expected_node_id` may be NULL; else another node at that address is refused with KVF_IDENTITY_MISMATCH. */
KVFERRY_C_API kvf_code kvf_connect(kvf_engine* engine, const char* endpoint, const char* expected_node_id,
                                   int64_t timeout_ms, kvf_peer** peer);
/* Gives the handle back; the connection stays until kvf_peer_close or the engine's end. */
KVFERRY_C_API void kvf_peer_free(kvf_peer* peer);
KVFERRY_C_API void kvf_peer_close(kvf_peer* peer);
KVFERRY_C_API uint64_t kvf_peer_handle(const kvf_peer* peer); /* what kvf_message_peer returns */
KVFERRY_C_API kvf_code kvf_peer_status(const kvf_peer* peer); /* KVF_OK while alive, else why it was lost */
KVFERRY_C_API kvf_code kvf_peer_refresh(kvf_peer* peer, int64_t timeout_ms); /* fetch its regions anew */
/* The peer's region called `name`, as of first contact or the last refresh; KVF_NOT_FOUND, KVF_INVALID_ARGUMENT if
 * several are called so. */
KVFERRY_C_API kvf_code kvf_peer_region(const kvf_peer* peer, const char* name, kvf_region* region);
/* Copies at most `capacity` bytes of the peer's metadata; returns its whole length. */
KVFERRY_C_API size_t kvf_peer_metadata(const kvf_peer* peer, void* buffer, size_t capacity);

/* --- transfers ---------------------------------------------------------------------------------------------------- */
/* Checks ranges, rights and generations once and merges contiguous runs. A plan may be submitted many times. */
KVFERRY_C_API kvf_code kvf_prepare(kvf_engine* engine, const kvf_peer* peer, kvf_op op, const kvf_piece* pieces,
                                   size_t count, kvf_plan** plan);
KVFERRY_C_API uint64_t kvf_plan_bytes(const kvf_plan* plan);
KVFERRY_C_API size_t kvf_plan_runs(const kvf_plan* plan); /* after merging */
KVFERRY_C_API void kvf_plan_free(kvf_plan* plan);
/* Never blocks. `options` NULL: KVF_SUBMIT_DEFAULTS. Local memory belongs to the transfer until it is settled. */
KVFERRY_C_API kvf_code kvf_submit(kvf_engine* engine, const kvf_plan* plan, const kvf_submit_options* options,
                                  kvf_transfer** transfer);
/* Submits and waits, by this thread's own work where that saves a hand-over. Returns the transfer's outcome;
 * `transfer` may be NULL, else it is set whenever a transfer was made, whatever its outcome. */
KVFERRY_C_API kvf_code kvf_execute(kvf_engine* engine, const kvf_plan* plan, const kvf_submit_options* options,
                                   kvf_transfer** transfer);
/* KVF_OK: settled, see kvf_transfer_status. KVF_DEADLINE_EXCEEDED: not within `timeout_ms`. */
KVFERRY_C_API kvf_code kvf_transfer_wait(kvf_transfer* transfer, int64_t timeout_ms);
KVFERRY_C_API int kvf_transfer_settled(const kvf_transfer* transfer);
/* KVF_OK: every piece arrived. Before it is settled: KVF_UNAVAILABLE. */
KVFERRY_C_API kvf_code kvf_transfer_status(const kvf_transfer* transfer);
/* One code per piece given to kvf_prepare, in that order; `codes` has room for `count`. */
KVFERRY_C_API kvf_code kvf_transfer_piece_codes(const kvf_transfer* transfer, kvf_code* codes, size_t count);
KVFERRY_C_API void kvf_transfer_cancel(kvf_transfer* transfer);
/* Readable once settled; owned by the transfer; -1 if none could be made. */
KVFERRY_C_API int kvf_transfer_event_fd(kvf_transfer* transfer);
/* Does not cancel. The memory stays in use until the transfer is settled: kvf_unregister waits for that. */
KVFERRY_C_API void kvf_transfer_free(kvf_transfer* transfer);

/* --- control messages, at most 1 MiB each ------------------------------------------------------------------------- */
KVFERRY_C_API kvf_code kvf_send(kvf_engine* engine, uint64_t peer_handle, const void* body, size_t length,
                                int64_t timeout_ms);
/* KVF_DEADLINE_EXCEEDED: none came. */
KVFERRY_C_API kvf_code kvf_next_message(kvf_engine* engine, int64_t timeout_ms, kvf_message** message);
KVFERRY_C_API uint64_t kvf_message_peer(const kvf_message* message);
KVFERRY_C_API const void* kvf_message_body(const kvf_message* message, size_t* length);
KVFERRY_C_API void kvf_message_free(kvf_message* message);

#ifdef __cplusplus
}
#endif
