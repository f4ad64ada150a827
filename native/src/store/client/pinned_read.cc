#include "store/client/pinned_read.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>

namespace kvferry::store {
namespace {

// Pinned at once, and twice as much while the next part's pins are asked for: a reader must not fill the node's memory.
constexpr std::uint64_t kPartBytes = 4u << 20;
constexpr milliseconds kUsualWait{10};               // for what a node has in memory
constexpr std::uint64_t kSlowestBytesPerMs = 20000;  // a node that is slower than that counts as stuck

using Wants = std::span<Want* const>;

// The error for an object that does not fit what was asked for; OK if it does.
Status misfit(const Want& want, const Held& held) {
  if (want.whole && held.bytes > want.room()) {
    return {Code::kOutOfRange,
            "the object has " + std::to_string(held.bytes) + " bytes, the target only " + std::to_string(want.room())};
  }
  if (!want.whole && (want.offset > held.bytes || want.room() > held.bytes - want.offset)) {
    std::uint64_t end = 0;
    if (__builtin_add_overflow(want.offset, want.room(), &end)) end = UINT64_MAX;
    return {Code::kOutOfRange, "bytes " + std::to_string(want.offset) + " to " + std::to_string(end) +
                                   " are not all in an object of " + std::to_string(held.bytes)};
  }
  return {};
}

std::uint64_t wanted_bytes(const Want& want, const Held& held) { return want.whole ? held.bytes : want.room(); }

// False: the bytes are not those of the digest. They count as not read, and others may have the right ones.
bool right(Want& want, const Held& held) {
  if (!want.verify || !want.whole) return true;
  const auto got = cut(want.target, 0, held.bytes);
  const std::vector<std::span<const std::byte>> bytes(got.begin(), got.end());
  if (digest_of(bytes) == held.digest) return true;
  want.trouble = {Code::kDataCorrupt, "the bytes that were read are not those of the object's digest"};
  return false;
}

struct Reading {  // an object that the node has pinned for us
  Want* want;
  const Pin::Done* pinned;
  std::size_t first_piece = 0;
  std::size_t pieces = 0;
};

// Pairs the object's places with the target's runs.
Status add_pieces(Reading& reading, ProgramMemory::Use& memory, std::vector<Piece>& pieces) {
  const Want& want = *reading.want;
  std::uint64_t skip = want.whole ? 0 : want.offset;
  std::uint64_t left = wanted_bytes(want, reading.pinned->held);
  std::size_t run = 0;
  std::uint64_t used = 0;
  reading.first_piece = pieces.size();
  for (const wire::PieceDescriptor& place : reading.pinned->places) {
    std::uint64_t at = std::min(skip, place.length);
    skip -= at;
    while (at < place.length && left > 0) {
      while (run < want.target.size() && used == want.target[run].size()) ++run, used = 0;
      if (run == want.target.size()) return {Code::kProtocolError, "the node's places do not fit the object's size"};
      const std::uint64_t length = std::min({place.length - at, want.target[run].size() - used, left});
      KVF_ASSIGN_OR_RETURN(const LocalRun local, memory.of(want.target[run].data() + used, length, 0));
      pieces.push_back({local.region.id, place.region.id, local.offset, place.offset + at, length});
      at += length;
      used += length;
      left -= length;
    }
  }
  reading.pieces = pieces.size() - reading.first_piece;
  return left == 0 ? Status{} : Status{Code::kProtocolError, "the node's places do not fit the object's size"};
}

class PinnedRead {
 public:
  PinnedRead(ClientCore& core, const Connection& node, const Home* mapped, Deadline deadline)
      : core_(core), node_(node), mapped_(mapped), deadline_(deadline) {}

  // Asks for the pins; the answer is not waited for.
  void begin(Wants wants) {
    Pin request;
    for (const Want* want : wants) request.ids.push_back(want->id);
    wants_ = wants;
    begun_ = Clock::now();
    call_.emplace(core_.rpc->start(node_.handle(), request, deadline_));
  }

  // Reads what was pinned, and gives the pins back.
  Status finish() {
    // Only a ping tells a node that is stopped from one that must read its SSD first.
    if (!call_->await(std::min(deadline_, Clock::now() + kUsualWait))) {
      KVF_RETURN_IF_ERROR(core_.rpc->call(node_.handle(), Ping{}, soon(core_, deadline_)).status());
    }
    auto answer = call_->finish();
    KVF_RETURN_IF_ERROR(answer.status());
    if ((*answer)->results.size() != wants_.size()) return {Code::kProtocolError, "as many pins as ids were expected"};
    std::vector<Reading> readings;
    std::vector<std::uint64_t> pins;
    Status failed;
    for (std::size_t i = 0; i < wants_.size(); ++i) {
      const Pin::Done& done = (*answer)->results[i];
      if (!done.status.ok()) {
        refused(*wants_[i], done.status, &failed);
        continue;
      }
      pins.push_back(done.pin);
      if (Status bad = misfit(*wants_[i], done.held); !bad.ok()) {
        wants_[i]->finish(std::move(bad), done.held.bytes);
      } else {
        readings.push_back({wants_[i], &done});
      }
    }
    const Status moved = mapped_ != nullptr ? copy(readings) : transfer(readings);
    KVF_RETURN_IF_ERROR(give_back(pins));
    for (const Reading& reading : readings) conclude(reading);
    return moved.ok() ? failed : moved;
  }

 private:
  // What is only wrong with this object, e.g. that there is no room to bring it from SSD, is no failure of the others.
  static void refused(Want& want, const Status& why, Status* failed) {
    if (why.code() == Code::kNotFound || why.code() == Code::kDataCorrupt) return;  // others may have it
    (node_failed(why.code()) ? *failed : want.trouble) = why;
  }

  Status copy(std::vector<Reading>& readings) {
    std::uint64_t total = 0;
    for (const Reading& reading : readings) total += wanted_bytes(*reading.want, reading.pinned->held);
    Status misplaced;
    std::erase_if(readings, [&](const Reading& reading) {
      const auto runs = mapped_->memory(reading.pinned->places);
      const std::vector<std::span<const std::byte>> bytes(runs.begin(), runs.end());
      const Want& want = *reading.want;
      if (total_bytes(bytes) != reading.pinned->held.bytes) {
        misplaced = {Code::kProtocolError, "the node's places are not all in the memory that it shares"};
        return true;
      }
      copy_runs(cut(bytes, want.whole ? 0 : want.offset, wanted_bytes(want, reading.pinned->held)), want.target,
                stores_for(total));
      return false;
    });
    return misplaced;
  }

  Status transfer(std::vector<Reading>& readings) {
    ProgramMemory::Use memory(*core_.memory);
    std::vector<std::span<const std::byte>> targets;
    for (const Reading& reading : readings) {
      targets.insert(targets.end(), reading.want->target.begin(), reading.want->target.end());
    }
    (void)memory.cover(targets, 0);  // what cannot be registered together is registered by itself
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0;
    Status first;
    std::erase_if(readings, [&](Reading& reading) {
      const std::size_t before = pieces.size();
      const Status added = add_pieces(reading, memory, pieces);
      if (added.ok()) {
        bytes += wanted_bytes(*reading.want, reading.pinned->held);
        return false;
      }
      pieces.resize(before);
      refused(*reading.want, added, &first);
      return true;
    });
    if (pieces.empty()) return first;
    auto moved = move(pieces, bytes);
    if (!moved.ok()) {
      readings.clear();
      return moved.status();
    }
    const std::vector<Status> done = (*moved)->piece_status();
    std::erase_if(readings, [&](const Reading& reading) {
      for (std::size_t i = 0; i < reading.pieces; ++i) {
        const Status& piece = done[reading.first_piece + i];
        if (piece.ok()) continue;
        if (first.ok()) first = piece;
        return true;
      }
      return false;
    });
    return first;
  }

  Result<std::shared_ptr<Transfer>> move(const std::vector<Piece>& pieces, std::uint64_t bytes) {
    KVF_ASSIGN_OR_RETURN(const auto plan, core_.rpc->engine().prepare(node_.peer, pieces, Op::kRead));
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
    const milliseconds enough = core_.links->patience() + milliseconds(bytes / kSlowestBytesPerMs);
    SubmitOptions options;
    options.timeout = std::clamp(left, milliseconds(1), enough);
    return core_.rpc->engine().execute(plan, options);
  }

  // OK: the pins were held all along. Asked only if their lease may have ended.
  Status give_back(const std::vector<std::uint64_t>& pins) {
    if (pins.empty()) return {};
    Unpin request;
    request.pins = pins;
    const Deadline limit = std::max(soon(core_, deadline_), Clock::now() + milliseconds(100));
    if (Clock::now() - begun_ < node_.attached.pin_lease / 2) {
      (void)core_.rpc->post(node_.handle(), request, limit);  // its end with our connection is the net
      return {};
    }
    auto answer = core_.rpc->call(node_.handle(), request, limit);
    KVF_RETURN_IF_ERROR(answer.status());
    const bool all = (*answer)->held.size() == pins.size() &&
                     std::all_of((*answer)->held.begin(), (*answer)->held.end(), [](bool held) { return held; });
    if (all) return {};
    return {Code::kDeadlineExceeded, "the read took longer than the node keeps objects for it (store.pin_lease_s)"};
  }

  static void conclude(const Reading& reading) {
    Want& want = *reading.want;
    const Held& held = reading.pinned->held;
    if (right(want, held)) want.finish({}, wanted_bytes(want, held));
  }

  ClientCore& core_;
  const Connection& node_;
  const Home* mapped_;
  const Deadline deadline_;
  Wants wants_;
  Clock::time_point begun_{};
  std::optional<RpcEndpoint::Call<Pin>> call_;
};

// Cuts what is wanted into parts that are pinned together.
std::vector<Wants> parts_of(Wants wants) {
  std::vector<Wants> parts;
  std::size_t first = 0;
  while (first < wants.size()) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    while (first + count < wants.size() && count < kMaxObjects && (count == 0 || bytes < kPartBytes)) {
      bytes += wants[first + count++]->room();
    }
    parts.push_back(wants.subspan(first, count));
    first += count;
  }
  return parts;
}

}  // namespace

void deliver(Want& want, ConstPieces object, const Held& held, Stores stores) {
  if (Status bad = misfit(want, held); !bad.ok()) return want.finish(std::move(bad), held.bytes);
  const std::uint64_t length = wanted_bytes(want, held);
  if (want.whole) {
    copy_runs(object, want.target, stores);
  } else {
    copy_runs(cut(object, want.offset, length), want.target, stores);
  }
  if (right(want, held)) want.finish({}, length);
}

Status read_pinned(ClientCore& core, const std::shared_ptr<const Connection>& node, const Home* mapped, Wants wants,
                   Deadline deadline) {
  const std::vector<Wants> parts = parts_of(wants);
  std::deque<PinnedRead> under_way;  // the next part is pinned while one is read
  Status busy;
  std::size_t begun = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    while (begun < parts.size() && begun < i + 2)
      under_way.emplace_back(core, *node, mapped, deadline).begin(parts[begun++]);
    const Status done = under_way.front().finish();
    if (!done.ok() && node_failed(done.code())) return done;
    if (!done.ok()) busy = done;
    under_way.pop_front();
  }
  return busy;
}

}  // namespace kvferry::store
