// One engine that does what lines on its standard input say, for the fault campaign (tests/faults/campaign.py), which
// kills and stops such processes and asks the survivors.
// "fault_node TRANSPORT arena|foreign BIND SEED SECURITY [FAULT_PLAN]" (see secured()). Each line is answered with one;
// the engine closes when the input ends.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "engine_fixture.h"
#include "process_state.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kReadBytes = 64u << 20, kWriteBytes = 16u << 20;

std::string error_of(const Status& status) {
  std::string text = status.ok() ? "ok" : "error " + status.to_string();
  for (char& c : text) c = c == '\n' ? ' ' : c;
  return text;
}

// Memory that peers may use. Its bytes are pattern(seed), and again after each time that it was taken back.
class Owned {
 public:
  Owned(Engine& engine, std::string name, std::uint64_t length, bool arena, std::uint64_t seed)
      : engine_(engine), name_(std::move(name)), arena_(arena), seed_(seed) {
    if (!arena_) foreign_.resize(length);
    memory_ = foreign_;
    length_ = length;
  }
  Status share() {
    if (arena_) {
      auto made = engine_.allocate(length_, name_, kRemoteRead | kRemoteWrite);
      if (!made.ok()) return made.status();
      memory_ = {static_cast<std::byte*>(made->second), length_};
      key_ = made->first.key;
      fill(memory_, seed_);
      return {};
    }
    fill(memory_, seed_);
    auto made = engine_.register_memory(memory_.data(), length_, name_, kRemoteRead | kRemoteWrite, MemoryKind::kHost);
    if (made.ok()) key_ = made->key;
    return made.status();
  }
  // Takes the memory back, makes sure that it is ours alone, and shares it again.
  Status cycle(milliseconds timeout) {
    if (const Status status = engine_.unregister(key_, timeout); !status.ok()) return status;
    if (!arena_) {
      fill(memory_, seed_ + 1);
      std::this_thread::sleep_for(milliseconds(10));
      for (std::uint64_t i = 0; i < length_; i += 4093) {
        if (memory_[i] != pattern(seed_ + 1, i)) return {Code::kInternal, "written after it was taken back"};
      }
    }
    return share();
  }

 private:
  Engine& engine_;
  const std::string name_;
  const bool arena_;
  const std::uint64_t seed_;
  std::uint64_t length_ = 0;
  std::vector<std::byte> foreign_;
  std::span<std::byte> memory_;
  RegionKey key_;
};

struct Share {  // a part of a transfer's work, and how it is checked
  std::shared_ptr<Transfer> transfer;
  Op op = Op::kRead;
  std::uint64_t offset = 0, length = 0, seed = 0;
  milliseconds timeout{0};
};

class Node {
 public:
  Node(std::unique_ptr<Engine> engine, bool arena, std::uint64_t seed)
      : engine_(std::move(engine)),
        seed_(seed),
        target_(register_buffer(*engine_, kReadBytes, 0, 0, "target")),
        source_(register_buffer(*engine_, kWriteBytes, seed, 0, "source")),
        read_(*engine_, "read", kReadBytes, arena, seed),
        write_(*engine_, "write", kWriteBytes, arena, seed) {}
  ~Node() {
    stop_ = true;
    if (hammer_.joinable()) hammer_.join();
    engine_->close();
  }

  Status share() {
    const Status status = read_.share();
    return status.ok() ? write_.share() : status;
  }
  std::string greeting() const { return engine_->endpoint().to_string() + " " + engine_->node_id().to_string(); }
  std::string answer(std::istream& words);

 private:
  std::string connect(std::istream& words);
  std::string start(std::istream& words);
  std::string finish(std::istream& words);
  std::string hammer(std::istream& words);
  std::string cycle(std::istream& words);
  std::string leave();
  std::string idle();
  std::string state() const;
  Result<std::shared_ptr<Peer>> dial(std::istream& words, milliseconds timeout);
  Piece piece(const Peer& peer, Op op, std::uint64_t offset, std::uint64_t length, bool back) const;
  bool holds(const Share& share);

  const std::unique_ptr<Engine> engine_;
  const std::uint64_t seed_;
  Buffer target_, source_;
  Owned read_, write_;
  std::shared_ptr<Peer> peer_;
  std::vector<Share> shares_;
  std::vector<std::byte> expected_;
  std::uint64_t expected_seed_ = 0;
  std::atomic<bool> stop_{false};
  std::thread hammer_;
};

std::string Node::answer(std::istream& words) {
  std::string command;
  words >> command;
  if (command == "connect") return connect(words);
  if (command == "start") return start(words);
  if (command == "finish") return finish(words);
  if (command == "hammer") return hammer(words);
  if (command == "cycle") return cycle(words);
  if (command == "refresh") return peer_ ? error_of(peer_->refresh(milliseconds(20000))) : "error not connected";
  if (command == "leave") return leave();
  if (command == "idle") return idle();
  if (command == "state") return state();
  return "error no such command: " + command;
}

// ENDPOINT NODE
Result<std::shared_ptr<Peer>> Node::dial(std::istream& words, milliseconds timeout) {
  std::string endpoint, node;
  words >> endpoint >> node;
  auto address = Endpoint::parse(endpoint);
  auto expected = NodeId::parse(node);
  if (!address.ok() || !expected.ok()) return {Code::kInvalidArgument, "connect " + endpoint + " " + node};
  return engine_->connect(*address, *expected, timeout);
}

// connect MS ENDPOINT NODE: later commands go to this peer, and to no other
std::string Node::connect(std::istream& words) {
  int timeout_ms = 0;
  words >> timeout_ms;
  auto peer = dial(words, milliseconds(timeout_ms));
  if (peer_) peer_->close();
  peer_ = peer.ok() ? *peer : nullptr;
  return error_of(peer.status());
}

// `back`: of what was written.
Piece Node::piece(const Peer& peer, Op op, std::uint64_t offset, std::uint64_t length, bool back) const {
  Piece piece{op == Op::kRead ? target_.region.key.id : source_.region.key.id, 0, offset, offset, length};
  const std::string_view wanted = op == Op::kRead && !back ? "read" : "write";
  for (const RegionInfo& region : peer.regions()) {
    if (region.name == wanted) piece.remote_region = region.key.id;
  }
  return piece;
}

// start read|write|back OFFSET LENGTH COUNT MS SEED: COUNT transfers of LENGTH each, SEED is the pattern of what is
// read
std::string Node::start(std::istream& words) {
  std::string what;
  std::uint64_t offset = 0, length = 0, seed = 0;
  int count = 0, timeout_ms = 0;
  words >> what >> offset >> length >> count >> timeout_ms >> seed;
  if (!peer_) return "error not connected";
  const Op op = what == "write" ? Op::kWrite : Op::kRead;
  for (int i = 0; i < count; ++i, offset += length) {
    SubmitOptions options;
    options.timeout = milliseconds(timeout_ms);
    auto transfer = kvferry::testing::start(*engine_, peer_, {piece(*peer_, op, offset, length, what == "back")}, op,
                                            std::move(options));
    if (!transfer.ok()) return error_of(transfer.status());
    shares_.push_back({*transfer, op, offset, length, seed, *options.timeout});
  }
  return "ok";
}

bool Node::holds(const Share& share) {
  if (share.op == Op::kWrite) return true;  // read back later
  if (expected_seed_ != share.seed || expected_.empty()) {
    expected_.resize(kReadBytes);
    fill(expected_, share.seed);
    expected_seed_ = share.seed;
  }
  return std::memcmp(&target_.bytes[share.offset], &expected_[share.offset], share.length) == 0;
}

// finish MARGIN_MS: waits for all that was started. Answers with a count for each way to end, and what must be zero.
std::string Node::finish(std::istream& words) {
  int margin_ms = 0;
  words >> margin_ms;
  std::map<std::string, int> counts{{"wrong", 0}, {"late", 0}, {"hung", 0}};
  for (const Share& share : shares_) {
    if (!share.transfer->wait(share.timeout + milliseconds(4 * margin_ms))) {
      ++counts["hung"];
      continue;
    }
    const Status status = share.transfer->status();
    ++counts[std::string(code_name(status.code()))];
    if (status.ok() && !holds(share)) ++counts["wrong"];
    if (milliseconds(static_cast<int>(share.transfer->seconds() * 1000)) > share.timeout + milliseconds(margin_ms)) {
      ++counts["late"];
    }
  }
  shares_.clear();
  std::ostringstream out;
  out << "ok";
  for (const auto& [name, count] : counts) out << ' ' << name << '=' << count;
  return out.str();
}

// hammer read|write ENDPOINT NODE: reads or writes all there is, over and over, until the process ends
std::string Node::hammer(std::istream& words) {
  std::string what;
  words >> what;
  auto peer = dial(words, milliseconds(20000));
  if (!peer.ok()) return error_of(peer.status());
  hammer_ = std::thread([this, peer = *peer, op = what == "read" ? Op::kRead : Op::kWrite] {
    const std::uint64_t length = (op == Op::kRead ? kReadBytes : kWriteBytes) / 4;
    while (!stop_ && peer->status().ok()) {
      std::vector<Piece> pieces;
      for (std::uint64_t i = 0; i < 4; ++i) pieces.push_back(piece(*peer, op, i * length, length, false));
      // Whatever it was, a region that is being replaced most of all: look again.
      if (!run(*engine_, peer, pieces, op).ok()) (void)peer->refresh(milliseconds(1000));
    }
  });
  return "ok";
}

// cycle read|write MS: takes the region of that name back and shares it anew
std::string Node::cycle(std::istream& words) {
  std::string name;
  int timeout_ms = 0;
  words >> name >> timeout_ms;
  return error_of((name == "read" ? read_ : write_).cycle(milliseconds(timeout_ms)));
}

// leave: closes the connection to the peer
std::string Node::leave() {
  if (peer_) peer_->close();
  peer_.reset();
  return "ok";
}

// idle: waits until there is no peer, in either direction
std::string Node::idle() {
  if (!eventually([this] { return engine_->peers().empty(); })) {
    return "error " + std::to_string(engine_->peers().size()) + " peers are left";
  }
  return "ok";
}

std::string Node::state() const {
  std::ifstream maps("/proc/self/maps");
  std::size_t mappings = 0;
  for (std::string line; std::getline(maps, line);) ++mappings;
  std::ostringstream out;
  out << "ok fds=" << open_descriptors() << " threads=" << running_threads() << " maps=" << mappings
      << " peers=" << engine_->peers().size();
  return out.str();
}

int serve(EngineOptions options, bool arena, std::uint64_t seed) {
  auto engine = Engine::create(std::move(options));
  if (!engine.ok()) {
    std::cout << error_of(engine.status()) << std::endl;
    return 1;
  }
  Node node(std::move(engine).value(), arena, seed);
  if (const Status status = node.share(); !status.ok()) {
    std::cout << error_of(status) << std::endl;
    return 1;
  }
  std::cout << node.greeting() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::cout << node.answer(words) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace kvferry::testing

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    std::fputs("usage: fault_node TRANSPORT arena|foreign BIND SEED SECURITY [FAULT_PLAN]\n", stderr);
    return 2;
  }
  kvferry::EngineOptions options = kvferry::testing::secured(kvferry::testing::options_for({argv[1]}), argv[5]);
  options.allow_fallback = false;
  options.bind = argv[3];
  if (argc == 7) options.fault_plan = argv[6];
  return kvferry::testing::serve(std::move(options), std::string_view(argv[2]) == "arena",
                                 std::strtoull(argv[4], nullptr, 10));
}
