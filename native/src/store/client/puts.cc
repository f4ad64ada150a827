#include "store/client/puts.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "store/runs.h"

namespace kvferry::store {
namespace {

// Values up to this size travel inside of the message, which saves a round trip and costs two copies more. To another
// host larger ones do, too, if the call has few of them.
constexpr std::uint64_t kInlineBytes = 8u << 10;
constexpr std::uint64_t kRemoteInlineBytes = 64u << 10;
constexpr std::uint64_t kShortCallBytes = 256u << 10;
// Reserved with one request, two of which may be under way, so that one client does not fill the memory. Small enough
// for the first part to be written while the second one is reserved.
constexpr std::uint64_t kRoundBytes = 16u << 20;
// Offered memory goes round, so that it is seldom in the cache: streaming stores pay sooner than stores_for() says.
constexpr std::uint64_t kStreamedBytes = 64u << 10;
constexpr std::uint64_t kPullBytes = 1u << 20;  // read by the node at once
constexpr std::size_t kPullsAtOnce = 3;         // so that the link is busy while parts are checked and answered

using Offers = std::vector<Offer*>;
using Part = std::span<Offer* const>;

PutResult from(const PutDone& done) { return {done.status, done.created, done.replicas}; }

// The bytes are there already, or others are.
PutResult compare(const Offer& offer, const Held& existing) {
  if (existing.bytes == offer.object.bytes && existing.digest == digest_of(offer.value)) return {{}, false, 1};
  return {Status{Code::kConflict, "other bytes (" + std::to_string(existing.bytes) + ", these are " +
                                      std::to_string(offer.object.bytes) +
                                      ") are stored under this key, and objects are written once: remove it first"},
          false, 0};
}

// Calls send(part) for parts of at most `max_count` offers and about `max_bytes` bytes.
template <typename Send>
void in_parts(const Offers& offers, std::size_t max_count, std::uint64_t max_bytes, Send send) {
  std::size_t first = 0;
  while (first < offers.size()) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    while (first + count < offers.size() && count < max_count) {
      const std::uint64_t more = offers[first + count]->object.bytes;
      if (count > 0 && bytes + more > max_bytes) break;
      bytes += more;
      ++count;
    }
    send(std::span(offers).subspan(first, count));
    first += count;
  }
}

void fail_all(Part offers, const Status& why) {
  for (Offer* offer : offers) {
    if (!offer->done) offer->finish({why, false, 0});
  }
}

bool keys_differ(const Offers& offers) {
  std::vector<ObjectId> ids;
  ids.reserve(offers.size());
  for (const Offer* offer : offers) ids.push_back(offer->object.id);
  std::ranges::sort(ids);
  return std::ranges::adjacent_find(ids) == ids.end();
}

// The node has no room for it yet, but may have soon. Others need not be asked again.
bool comes_later(const Status& status) { return status.code() == Code::kDeadlineExceeded; }

// What it says of itself, not of the object.
bool is_of_the_node(Code code) {
  return code == Code::kUnavailable || code == Code::kResourceExhausted || code == Code::kDeadlineExceeded;
}

// While it lives, the node leaves to us what our session has reserved, whatever becomes of the connection.
class WritingAllowed {
 public:
  WritingAllowed(LocalReader& reader, Session session)
      : reader_(reader), session_(session), yes_(reader.begin_writing(session)) {}
  ~WritingAllowed() {
    if (yes_) reader_.end_writing(session_);
  }
  WritingAllowed(const WritingAllowed&) = delete;
  WritingAllowed& operator=(const WritingAllowed&) = delete;
  bool yes() const { return yes_; }

 private:
  LocalReader& reader_;
  const Session session_;
  const bool yes_;
};

class ToNode {
 public:
  ToNode(ClientCore& core, const Home& home, Deadline deadline) : core_(core), home_(home), deadline_(deadline) {}

  void run(std::span<Offer> offers) {
    Offers small;
    Offers large;
    std::uint64_t total = 0;
    for (const Offer& offer : offers) total += offer.done ? 0 : offer.object.bytes;
    const bool short_call = home_.reader() == nullptr && total <= kShortCallBytes;
    const std::uint64_t limit = short_call ? kRemoteInlineBytes : kInlineBytes;
    for (Offer& offer : offers) {
      if (!offer.done) (offer.object.bytes <= limit ? small : large).push_back(&offer);
    }
    // In order, so that of equal keys the first one is stored.
    until_there_is_room(small, [this](const Offers& some) { put_inline(some); });
    if (home_.reader() != nullptr) {
      put_quick(large);
      until_there_is_room(large, [this](const Offers& some) { put_in_place(some); });
    } else {
      until_there_is_room(large, [this](const Offers& some) { put_from(some); });
    }
  }

 private:
  std::uint64_t node() const { return home_.connection()->handle(); }
  std::string name() const {
    return "node " + home_.node().to_string() + " at " + home_.connection()->peer->endpoint().to_string();
  }

  void take(Part offers, const Result<std::vector<PutDone>>& results) {
    if (!results.ok()) return fail_all(offers, results.status());
    if (results->size() != offers.size()) {
      return fail_all(offers, {Code::kProtocolError, "the node did not answer for each object"});
    }
    for (std::size_t i = 0; i < offers.size(); ++i) finish_or_wait(*offers[i], from((*results)[i]));
  }

  void finish_or_wait(Offer& offer, PutResult result) {
    if (comes_later(result.status) && Clock::now() < deadline_) return waiting_.push_back(&offer);
    if (is_of_the_node(result.status.code())) result.status = result.status.with_context(name());
    offer.finish(std::move(result));
  }

  // Once more what found no room: the node waits a moment for it each time.
  template <typename Put>
  void until_there_is_room(const Offers& offers, Put put) {
    put(offers);
    while (!waiting_.empty()) put(std::exchange(waiting_, {}));
  }

  // A part is put together while the node takes the one before it.
  void put_inline(const Offers& offers) {
    std::optional<Answering<PutInline>> taking;
    Bytes joined;
    in_parts(offers, kMaxObjects, kMaxInlineBytes, [&](Part part) {
      PutInline request;
      std::uint64_t total = 0;
      for (const Offer* offer : part) total += offer->object.bytes;
      joined.resize(total);
      std::uint64_t used = 0;
      for (const Offer* offer : part) {
        const std::span<std::byte> room = std::span(joined).subspan(used, offer->object.bytes);
        const ContentDigest digest = copy_and_digest(offer->value, {&room, 1});
        request.items.push_back({offer->object, digest, room});
        used += offer->object.bytes;
      }
      conclude(taking);
      taking.emplace(Offers(part.begin(), part.end()), core_.rpc->start(node(), request, deadline_));
    });
    conclude(taking);
  }

  // Those that take no message, up to the first that does.
  void put_quick(Offers& offers) {
    LocalReader& node_memory = *home_.reader();
    std::uint64_t total = 0;
    for (const Offer* offer : offers) total += offer->object.bytes;
    const Stores stores = total >= kStreamedBytes ? Stores::kStreaming : Stores::kCached;
    bool ring = false;
    std::size_t stored = 0;
    for (; stored < offers.size(); ++stored) {
      Offer& offer = *offers[stored];
      const LocalReader::QuickPut put = node_memory.put(offer.object, offer.value, stores);
      if (!put.stored) break;
      ring = ring || put.ring;
      offer.finish({{}, true, 1});
    }
    offers.erase(offers.begin(), offers.begin() + static_cast<std::ptrdiff_t>(stored));
    // Not before the last: while the node takes puts in, ours would wait. What goes by message calls it by itself.
    if (ring && offers.empty()) (void)core_.rpc->post(node(), Ping{}, deadline_);
  }

  // Each part's memory is asked for before the one before it is written, and while a part is written, the node commits
  // the one before it.
  void put_in_place(const Offers& offers) {
    Offers crowded;  // found no room beside the part before it
    std::optional<Reservation> next;
    std::optional<Committing> committing;
    in_parts(offers, kMaxObjects, kRoundBytes, [&](Part part) {
      std::optional<Reservation> now = std::exchange(next, reserve(part));
      if (now) write_part(*std::move(now), committing, &crowded);
    });
    if (next) write_part(*std::move(next), committing, &crowded);
    conclude(committing);
    in_parts(crowded, kMaxObjects, kRoundBytes, [&](Part part) {
      write_part(reserve(part), committing, nullptr);
      conclude(committing);
    });
  }

  struct Reservation {
    Part offers;
    RpcEndpoint::Call<Reserve> call;
  };
  template <typename Request>
  struct Answering {  // the answer says what became of each
    Answering(Offers whose, RpcEndpoint::Call<Request> under_way, Abort if_lost = {})
        : offers(std::move(whose)), call(std::move(under_way)), undo(std::move(if_lost)) {}
    Offers offers;
    RpcEndpoint::Call<Request> call;
    Abort undo;  // owed to the node if it does not answer: what it has reserved for them
  };
  using Committing = Answering<Commit>;
  using Pulling = Answering<PutFrom>;

  Reservation reserve(Part offers) {
    Reserve request;
    request.objects.reserve(offers.size());
    for (const Offer* offer : offers) request.objects.push_back(offer->object);
    return {offers, core_.rpc->start(node(), request, deadline_)};
  }

  // `crowded`: takes those that found no room; null: they fail. One commit is under way at most: of equal keys, the
  // first one is stored.
  void write_part(Reservation reserved, std::optional<Committing>& committing, Offers* crowded) {
    const Part offers = reserved.offers;
    auto answer = reserved.call.finish();
    if (!answer.ok()) return fail_all(offers, answer.status());
    if ((*answer)->results.size() != offers.size()) {
      return fail_all(offers, {Code::kProtocolError, "the node did not answer for each object"});
    }
    std::uint64_t total = 0;
    for (const Offer* offer : offers) total += offer->object.bytes;
    const Stores stores = stores_for(total);
    const WritingAllowed writing(*home_.reader(), home_.connection()->attached.session);
    if (!writing.yes()) {
      return fail_all(offers, {Code::kPeerLost,
                               "the connection to " + name() + " broke before the value was written; put it again"});
    }
    Commit commit;
    Offers written;
    Abort abort;
    for (std::size_t i = 0; i < offers.size(); ++i) {
      const Reserve::Done& done = (*answer)->results[i];
      Offer& offer = *offers[i];
      if (done.status.code() == Code::kResourceExhausted && crowded != nullptr) {
        crowded->push_back(&offer);
      } else if (!done.status.ok()) {
        finish_or_wait(offer, {done.status, false, 0});
      } else if (done.existing) {
        offer.finish(compare(offer, *done.existing));
      } else if (const auto digest = write(offer, done, stores)) {
        commit.items.push_back({done.put, *digest});
        written.push_back(&offer);
      } else {
        abort.puts.push_back(done.put);
      }
    }
    if (!abort.puts.empty()) core_.rpc->owe(node(), abort);
    conclude(committing);
    if (written.empty()) return;
    Abort undo;
    for (const Commit::Item& item : commit.items) undo.puts.push_back(item.put);
    committing.emplace(std::move(written), core_.rpc->start(node(), commit, deadline_), std::move(undo));
  }

  template <typename Request>
  void conclude(std::optional<Answering<Request>>& under_way) {
    if (!under_way) return;
    auto answer = under_way->call.finish();
    if (!answer.ok() && !under_way->undo.puts.empty()) core_.rpc->owe(node(), under_way->undo);
    take(under_way->offers, answer.ok() ? Result<std::vector<PutDone>>((*answer)->results) : answer.status());
    under_way.reset();
  }

  std::optional<ContentDigest> write(Offer& offer, const Reserve::Done& reserved, Stores stores) {
    const auto places = home_.memory(std::span(reserved.places));
    if (total_bytes(places) == offer.object.bytes) return copy_and_digest(offer.value, places, stores);
    offer.finish({{Code::kProtocolError, "the node reserved memory of another size than was asked for"}, false, 0});
    return std::nullopt;
  }

  // The node reads a part while it checks the one before it, and the next one is digested here. Of equal keys the first
  // one is to be stored: then one part after the other.
  void put_from(const Offers& offers) {
    ProgramMemory::Use memory(*core_.memory, home_.connection()->peer);
    std::vector<std::span<const std::byte>> sources;
    for (const Offer* offer : offers) sources.insert(sources.end(), offer->value.begin(), offer->value.end());
    if (const Status covered = memory.cover(sources, kRemoteRead); !covered.ok()) return fail_all(offers, covered);
    const std::size_t at_once = keys_differ(offers) ? kPullsAtOnce : 1;
    std::deque<std::optional<Pulling>> pulling;
    const auto conclude_to = [&](std::size_t left) {
      for (; pulling.size() > left; pulling.pop_front()) conclude(pulling.front());
    };
    in_parts(offers, kMaxPutFrom, kPullBytes, [&](Part part) {
      PutFrom request;
      Offers sent;
      for (Offer* offer : part) {
        auto pieces = describe(offer->value, memory);
        if (pieces.ok()) {
          request.items.push_back({offer->object, std::move(*pieces), digest_of(offer->value)});
          sent.push_back(offer);
        } else {
          offer->finish({pieces.status(), false, 0});
        }
      }
      conclude_to(at_once - 1);
      if (sent.empty()) return;
      pulling.emplace_back(std::in_place, std::move(sent), core_.rpc->start(node(), request, deadline_));
    });
    conclude_to(0);
  }

  static Result<std::vector<wire::PieceDescriptor>> describe(ConstPieces value, ProgramMemory::Use& memory) {
    std::vector<wire::PieceDescriptor> pieces;
    for (const auto& run : value) {
      if (run.empty()) continue;
      if (pieces.size() == kMaxPutPieces) {
        return {Code::kInvalidArgument, "a value for a node of another host may have at most " +
                                            std::to_string(kMaxPutPieces) + " pieces; register or join them"};
      }
      KVF_ASSIGN_OR_RETURN(const LocalRun local, memory.of(run.data(), run.size(), kRemoteRead));
      pieces.push_back({local.region, local.offset, local.length});
    }
    return pieces;
  }

  ClientCore& core_;
  const Home& home_;
  const Deadline deadline_;
  Offers waiting_;  // for room
};

void count(ClientCore& core, std::span<Offer> offers) {
  for (const Offer& offer : offers) {
    const Status& status = offer.result.status;
    core.counters.puts.fetch_add(1, std::memory_order_relaxed);
    if (status.ok()) core.counters.put_bytes.fetch_add(offer.object.bytes, std::memory_order_relaxed);
    if (status.code() == Code::kConflict) core.counters.put_conflicts.fetch_add(1, std::memory_order_relaxed);
    if (!status.ok()) core.counters.put_failures.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

void put(ClientCore& core, std::span<Offer> offers, Deadline deadline) {
  const auto home = core.home(deadline);
  if (home.ok()) {
    for (Offer& offer : offers) {
      if (offer.object.replicas == 0) offer.object.replicas = (*home)->connection()->attached.default_replicas;
    }
    ToNode(core, **home, deadline).run(offers);
  }
  for (Offer& offer : offers) {
    if (!offer.done) offer.finish({home.status(), false, 0});
  }
  count(core, offers);
}

}  // namespace kvferry::store
