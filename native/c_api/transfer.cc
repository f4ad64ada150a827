// Peers, plans and transfers.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "handles.h"

using namespace kvferry;
using namespace kvferry::c_api;

namespace {

Status check_op(kvf_op op) {
  if (op == KVF_READ || op == KVF_WRITE) return {};
  return {Code::kInvalidArgument, "op must be KVF_READ or KVF_WRITE"};
}

Result<RegionInfo> region_called(const Peer& peer, std::string_view name) {
  std::vector<RegionInfo> found = peer.regions();
  std::erase_if(found, [&](const RegionInfo& info) { return info.name != name; });
  if (found.size() == 1) return std::move(found.front());
  const std::string node = "node " + peer.node_id().to_string(), quoted = "'" + std::string(name) + "'";
  if (found.empty())
    return {Code::kNotFound, node + " has no region " + quoted + "; kvf_peer_refresh fetches new ones"};
  return {Code::kInvalidArgument, node + " has " + std::to_string(found.size()) + " regions " + quoted +
                                      ": its owner must give each a name of its own"};
}

Result<SubmitOptions> submit_options(const kvf_submit_options* given) {
  SubmitOptions options;
  if (given == nullptr) return options;
  if (given->priority < KVF_HIGH || given->priority > KVF_LOW) {
    return {Code::kInvalidArgument, "priority must be KVF_HIGH, KVF_NORMAL or KVF_LOW"};
  }
  if (given->notify == nullptr && given->notify_length > 0) {
    return {Code::kInvalidArgument, "notify is NULL but notify_length is not 0"};
  }
  if (given->timeout_ms >= 0) options.timeout = milliseconds(given->timeout_ms);
  options.priority = static_cast<Priority>(given->priority);
  options.notify.assign(static_cast<const char*>(given->notify), given->notify_length);
  return options;
}

}  // namespace

extern "C" {

kvf_code kvf_connect(kvf_engine* engine, const char* endpoint, const char* expected_node_id, int64_t timeout_ms,
                     kvf_peer** peer) {
  if (any_missing(engine) || any_missing(endpoint) || missing(peer)) return missing_argument("kvf_connect");
  return guarded([&] {
    const auto address = Endpoint::parse(endpoint);
    if (!address.ok()) return report(address.status());
    NodeId expected;
    if (expected_node_id != nullptr) {
      const auto parsed = NodeId::parse(expected_node_id);
      if (!parsed.ok()) return report(parsed.status());
      expected = *parsed;
    }
    auto made = engine->engine->connect(*address, expected, milliseconds(timeout_ms));
    if (!made.ok()) return report(made.status());
    *peer = new kvf_peer{std::move(made).value()};
    return KVF_OK;
  });
}

void kvf_peer_free(kvf_peer* peer) { delete peer; }

void kvf_peer_close(kvf_peer* peer) {
  if (missing(peer)) return;
  (void)guarded([&] {
    peer->peer->close();
    return KVF_OK;
  });
}

uint64_t kvf_peer_handle(const kvf_peer* peer) { return missing(peer) ? 0 : peer->peer->handle(); }

kvf_code kvf_peer_status(const kvf_peer* peer) {
  if (missing(peer)) return missing_argument("kvf_peer_status");
  return guarded([&] { return report(peer->peer->status()); });
}

kvf_code kvf_peer_refresh(kvf_peer* peer, int64_t timeout_ms) {
  if (missing(peer)) return missing_argument("kvf_peer_refresh");
  return guarded([&] { return report(peer->peer->refresh(milliseconds(timeout_ms))); });
}

kvf_code kvf_peer_region(const kvf_peer* peer, const char* name, kvf_region* region) {
  if (any_missing(peer) || any_missing(name) || missing(region)) return missing_argument("kvf_peer_region");
  return guarded([&] {
    const auto found = region_called(*peer->peer, name);
    if (!found.ok()) return report(found.status());
    *region = {found->key.id, found->key.generation, found->length};
    return KVF_OK;
  });
}

size_t kvf_peer_metadata(const kvf_peer* peer, void* buffer, size_t capacity) {
  if (missing(peer)) return 0;
  std::size_t length = 0;
  (void)guarded([&] {
    const std::string metadata = peer->peer->metadata();
    length = metadata.size();
    if (!missing(buffer)) std::copy_n(metadata.data(), std::min(capacity, length), static_cast<char*>(buffer));
    return KVF_OK;
  });
  return length;
}

kvf_code kvf_prepare(kvf_engine* engine, const kvf_peer* peer, kvf_op op, const kvf_piece* pieces, size_t count,
                     kvf_plan** plan) {
  if (any_missing(engine) || any_missing(peer) || missing(plan) || (missing(pieces) && count > 0)) {
    return missing_argument("kvf_prepare");
  }
  return guarded([&] {
    if (const Status known = check_op(op); !known.ok()) return report(known);
    std::vector<Piece> list;
    list.reserve(count);
    for (const kvf_piece& piece : std::span(pieces, count)) {
      list.push_back({piece.local_region, piece.remote_region, piece.local_offset, piece.remote_offset, piece.length});
    }
    auto made = engine->engine->prepare(peer->peer, list, static_cast<Op>(op));
    if (!made.ok()) return report(made.status());
    *plan = new kvf_plan{std::move(made).value()};
    return KVF_OK;
  });
}

uint64_t kvf_plan_bytes(const kvf_plan* plan) { return missing(plan) ? 0 : plan->plan->bytes(); }

size_t kvf_plan_runs(const kvf_plan* plan) { return missing(plan) ? 0 : plan->plan->runs(); }

void kvf_plan_free(kvf_plan* plan) { delete plan; }

kvf_code kvf_submit(kvf_engine* engine, const kvf_plan* plan, const kvf_submit_options* options,
                    kvf_transfer** transfer) {
  if (any_missing(engine) || any_missing(plan) || missing(transfer)) return missing_argument("kvf_submit");
  return guarded([&] {
    auto how = submit_options(options);
    if (!how.ok()) return report(how.status());
    auto made = engine->engine->submit(plan->plan, std::move(how).value());
    if (!made.ok()) return report(made.status());
    *transfer = new kvf_transfer{std::move(made).value()};
    return KVF_OK;
  });
}

kvf_code kvf_execute(kvf_engine* engine, const kvf_plan* plan, const kvf_submit_options* options,
                     kvf_transfer** transfer) {
  if (any_missing(engine) || any_missing(plan)) return missing_argument("kvf_execute");
  return guarded([&] {
    auto how = submit_options(options);
    if (!how.ok()) return report(how.status());
    auto made = engine->engine->execute(plan->plan, std::move(how).value());
    if (!made.ok()) return report(made.status());
    const Status outcome = (*made)->status();
    if (transfer != nullptr) *transfer = new kvf_transfer{std::move(made).value()};
    return report(outcome);
  });
}

kvf_code kvf_transfer_wait(kvf_transfer* transfer, int64_t timeout_ms) {
  if (missing(transfer)) return missing_argument("kvf_transfer_wait");
  return guarded([&] {
    if (transfer->transfer->wait(milliseconds(timeout_ms))) return KVF_OK;
    return report(Code::kDeadlineExceeded, "the transfer is not settled after " + std::to_string(timeout_ms) + " ms");
  });
}

int kvf_transfer_settled(const kvf_transfer* transfer) {
  return !missing(transfer) && transfer->transfer->settled() ? 1 : 0;
}

kvf_code kvf_transfer_status(const kvf_transfer* transfer) {
  if (missing(transfer)) return missing_argument("kvf_transfer_status");
  return guarded([&] { return report(transfer->transfer->status()); });
}

kvf_code kvf_transfer_piece_codes(const kvf_transfer* transfer, kvf_code* codes, size_t count) {
  if (missing(transfer) || (missing(codes) && count > 0)) return missing_argument("kvf_transfer_piece_codes");
  return guarded([&] {
    const std::vector<Status> pieces = transfer->transfer->piece_status();
    if (count != pieces.size()) {
      return report(Code::kInvalidArgument, "room for " + std::to_string(count) + " codes was given, the plan has " +
                                                std::to_string(pieces.size()) + " pieces");
    }
    std::transform(pieces.begin(), pieces.end(), codes,
                   [](const Status& status) { return static_cast<kvf_code>(status.code()); });
    return KVF_OK;
  });
}

void kvf_transfer_cancel(kvf_transfer* transfer) {
  if (missing(transfer)) return;
  (void)guarded([&] {
    transfer->transfer->cancel();
    return KVF_OK;
  });
}

int kvf_transfer_event_fd(kvf_transfer* transfer) { return missing(transfer) ? -1 : transfer->transfer->event_fd(); }

void kvf_transfer_free(kvf_transfer* transfer) { delete transfer; }

}  // extern "C"
