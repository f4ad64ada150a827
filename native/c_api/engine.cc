// Engines, their memory, and control messages.
#include <cstddef>
#include <string_view>
#include <utility>

#include "handles.h"

using namespace kvferry;
using namespace kvferry::c_api;

namespace {

kvf_region region_of(const RegionInfo& info) { return {info.key.id, info.key.generation, info.length}; }

std::uint8_t access_bits(unsigned access) { return static_cast<std::uint8_t>(access); }

Status check_access(unsigned access) {
  if ((access & ~static_cast<unsigned>(kRemoteRead | kRemoteWrite)) == 0) return {};
  return {Code::kInvalidArgument, "access has bits besides KVF_REMOTE_READ and KVF_REMOTE_WRITE"};
}

}  // namespace

extern "C" {

kvf_code kvf_engine_create(const kvf_options* options, kvf_engine** engine) {
  if (missing(engine)) return missing_argument("kvf_engine_create");
  return guarded([&] {
    auto made = Engine::create(options == nullptr ? EngineOptions() : options->value);
    if (!made.ok()) return report(made.status());
    auto holder = std::make_unique<kvf_engine>();
    holder->engine = std::move(made).value();
    holder->endpoint = holder->engine->endpoint().to_string();
    holder->node_id = holder->engine->node_id().to_string();
    *engine = holder.release();
    return KVF_OK;
  });
}

void kvf_engine_free(kvf_engine* engine) { delete engine; }

const char* kvf_engine_endpoint(const kvf_engine* engine) { return missing(engine) ? "" : engine->endpoint.c_str(); }

const char* kvf_engine_node_id(const kvf_engine* engine) { return missing(engine) ? "" : engine->node_id.c_str(); }

kvf_code kvf_register(kvf_engine* engine, void* data, uint64_t length, const char* name, unsigned access,
                      kvf_region* region) {
  if (any_missing(engine, region)) return missing_argument("kvf_register");
  return guarded([&] {
    if (const Status bits = check_access(access); !bits.ok()) return report(bits);
    const auto made = engine->engine->register_memory(data, length, name == nullptr ? "" : name, access_bits(access),
                                                      MemoryKind::kHost);
    if (!made.ok()) return report(made.status());
    *region = region_of(*made);
    return KVF_OK;
  });
}

kvf_code kvf_allocate(kvf_engine* engine, uint64_t length, const char* name, unsigned access, kvf_region* region,
                      void** data) {
  if (any_missing(engine, region) || missing(data)) return missing_argument("kvf_allocate");
  return guarded([&] {
    if (const Status bits = check_access(access); !bits.ok()) return report(bits);
    const auto made = engine->engine->allocate(length, name == nullptr ? "" : name, access_bits(access));
    if (!made.ok()) return report(made.status());
    *region = region_of(made->first);
    *data = made->second;
    return KVF_OK;
  });
}

kvf_code kvf_unregister(kvf_engine* engine, kvf_region region, int64_t timeout_ms) {
  if (missing(engine)) return missing_argument("kvf_unregister");
  return guarded([&] {
    return report(engine->engine->unregister({region.id, region.generation}, milliseconds(timeout_ms)));
  });
}

kvf_code kvf_set_metadata(kvf_engine* engine, const void* metadata, size_t length) {
  if (missing(engine) || (missing(metadata) && length > 0)) return missing_argument("kvf_set_metadata");
  return guarded([&] {
    const std::string_view bytes(static_cast<const char*>(metadata), length);
    return report(engine->engine->set_metadata(std::string(bytes)));
  });
}

kvf_code kvf_send(kvf_engine* engine, uint64_t peer_handle, const void* body, size_t length, int64_t timeout_ms) {
  if (missing(engine) || (missing(body) && length > 0)) return missing_argument("kvf_send");
  return guarded([&] {
    const std::string_view bytes(static_cast<const char*>(body), length);
    return report(engine->engine->send(peer_handle, bytes, milliseconds(timeout_ms)));
  });
}

kvf_code kvf_next_message(kvf_engine* engine, int64_t timeout_ms, kvf_message** message) {
  if (any_missing(engine) || missing(message)) return missing_argument("kvf_next_message");
  return guarded([&] {
    auto next = engine->engine->next_message(milliseconds(timeout_ms));
    if (!next) {
      return report(Code::kDeadlineExceeded, "no message came within " + std::to_string(timeout_ms) + " ms");
    }
    *message = new kvf_message{std::move(*next)};
    return KVF_OK;
  });
}

uint64_t kvf_message_peer(const kvf_message* message) { return missing(message) ? 0 : message->message.peer; }

const void* kvf_message_body(const kvf_message* message, size_t* length) {
  if (length != nullptr) *length = missing(message) ? 0 : message->message.body.size();
  return missing(message) ? nullptr : message->message.body.data();
}

void kvf_message_free(kvf_message* message) { delete message; }

}  // extern "C"
