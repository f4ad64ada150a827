// Requests and answers between two engines: many at once, slow ones, lost peers, and what is no message of the store.
#include "store/rpc.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/deadline.h"
#include "engine_fixture.h"
#include "process_state.h"

namespace kvferry::store {
namespace {

using kvferry::testing::kPatience;

// Answers pings at once with a number of its own, and Exists (as slow requests) when it is allowed to.
class TestHandler : public Handler {
 public:
  Result<std::optional<Bytes>> quick(const Request& request) override {
    if (request.header.type == Type::kAbort) {
      const auto abort = decode_request<Abort>(request.body);
      if (!abort.ok()) return abort.status();
      const std::lock_guard lock(mutex);
      aborted.insert(aborted.end(), abort->puts.begin(), abort->puts.end());
      return std::optional<Bytes>(Bytes());
    }
    if (request.header.type == Type::kRemove) {  // holds up whatever comes after it
      std::unique_lock lock(mutex);
      ++waiting;
      changed.notify_all();
      changed.wait_for(lock, kPatience, [&] { return reading; });
      return std::optional<Bytes>(Bytes());
    }
    if (request.header.type == Type::kReserve) return std::optional<Bytes>();
    if (request.header.type == Type::kExists || request.header.type == Type::kGetInline) return std::optional<Bytes>();
    if (request.header.type != Type::kPing) {
      return std::optional<Bytes>(encode_refusal(request.header, {Code::kUnsupported, "not in this test"}));
    }
    const auto ping = decode_request<Ping>(request.body);
    if (!ping.ok()) return ping.status();
    return std::optional<Bytes>(encode_answer<Ping>(request.header.request_id, Ping::Answer{++pings, true}));
  }
  Result<Bytes> handle(const Request& request) override {
    if (request.header.type == Type::kGetInline) {  // a long answer
      GetInline::Answer answer;
      answer.results.push_back({{}, {}, long_value});
      return encode_answer<GetInline>(request.header.request_id, answer);
    }
    if (request.header.type == Type::kReserve) {
      std::unique_lock lock(mutex);
      ++waiting;
      changed.notify_all();
      changed.wait_for(lock, kPatience, [&] { return open; });
      Reserve::Answer answer;
      answer.results.emplace_back().put = 17;
      return encode_answer<Reserve>(request.header.request_id, answer);
    }
    const auto asked = decode_request<Exists>(request.body);
    if (!asked.ok()) return asked.status();
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait_for(lock, kPatience, [&] { return open; });
    return encode_answer<Exists>(request.header.request_id, Exists::Answer{asked->ids.size(), {}});
  }
  std::size_t pool(Type) const override { return 1; }
  void lost(std::uint64_t, const Status&) override { ++losses; }
  bool wait_until(std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return waiting >= count; });
  }
  void read_on() {
    const std::lock_guard lock(mutex);
    reading = true;
    changed.notify_all();
  }
  std::vector<PutId> all_aborted() {
    const std::lock_guard lock(mutex);
    return aborted;
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }

  std::atomic<std::uint64_t> pings{0}, losses{0};
  const Bytes long_value{200u << 10, std::byte{7}};
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t waiting = 0;
  bool open = false;     // slow requests are answered
  bool reading = false;  // what a Remove holds up goes on
  std::vector<PutId> aborted;
};

class StoreRpc : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = make(&handler_, {1, 2});
    client_ = make(nullptr, {1});
    auto peer = client_->engine().connect(server_->engine().endpoint(), server_->engine().node_id(), kPatience);
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    peer_ = *peer;
  }
  static std::unique_ptr<RpcEndpoint> make(Handler* handler, const RpcEndpoint::Pools& pools) {
    EngineOptions options;
    options.idle_probe = kPatience;  // a handler that holds up its connection is no lost peer
    auto made = RpcEndpoint::create(options, handler, pools);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? *std::move(made) : nullptr;
  }
  Deadline soon() const { return deadline_in(kPatience); }

  TestHandler handler_;
  std::unique_ptr<RpcEndpoint> server_, client_;
  std::shared_ptr<Peer> peer_;
};

TEST_F(StoreRpc, AnswersManyCallsOfManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) good += client_->call(peer_->handle(), Ping{}, soon()).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 800);
  EXPECT_EQ(handler_.pings, 800u);
}

TEST_F(StoreRpc, SlowRequestsHoldUpNobodyElse) {
  auto slow = client_->start(peer_->handle(), Exists{{ObjectId{1, 2}}}, soon());
  auto slower = client_->start(peer_->handle(), Exists{{ObjectId{1, 2}, ObjectId{1, 3}}}, soon());
  EXPECT_TRUE(client_->call(peer_->handle(), Ping{}, soon()).ok());
  handler_.let_go();
  const auto first = slow.finish();
  const auto second = slower.finish();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->view, 1u);
  EXPECT_EQ((*second)->view, 2u);
}

TEST_F(StoreRpc, ACallEndsAtItsDeadlineAndItsLateAnswerIsDropped) {
  const auto late = client_->call(peer_->handle(), Exists{}, deadline_in(milliseconds(20)));
  EXPECT_EQ(late.status().code(), Code::kDeadlineExceeded);
  const std::string server =
      "node " + server_->engine().node_id().to_string() + " at " + server_->engine().endpoint().to_string();
  for (const std::string& word :
       {std::string("EXISTS"), server, std::string("within "), std::string("kvferry status")}) {
    EXPECT_NE(late.status().message().find(word), std::string::npos) << late.status().message();
  }
  handler_.let_go();
  EXPECT_TRUE(client_->call(peer_->handle(), Ping{}, soon()).ok());
}

TEST_F(StoreRpc, WhatWasAnsweredWithARefusalNamesWhoRefused) {
  const Status refused = client_->call(peer_->handle(), Stats{}, soon()).status();
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_NE(refused.message().find(server_->engine().node_id().to_string()), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("not in this test"), std::string::npos) << refused.message();
}

// The node's memory would stay reserved until the client closes.
TEST_F(StoreRpc, AnAbortThatCannotBeSentAtOnceIsSentLater) {
  auto given_up = std::make_unique<RpcEndpoint::Call<Reserve>>(client_->start(peer_->handle(), Reserve{}, soon()));
  ASSERT_TRUE(handler_.wait_until(1));
  ASSERT_TRUE(client_->post(peer_->handle(), Remove{}, soon()).ok());
  ASSERT_TRUE(handler_.wait_until(2));  // nobody reads what we send now
  given_up.reset();
  const Remove filler{std::vector<ObjectId>(kMaxObjects)};
  for (int refused = 0; refused < 3;) {
    refused = client_->post(peer_->handle(), filler, deadline_in(milliseconds(100))).ok() ? 0 : refused + 1;
  }
  handler_.let_go();  // the late answer comes
  EXPECT_TRUE(kvferry::testing::eventually([&] { return client_->owed() == 1; }));
  EXPECT_TRUE(handler_.all_aborted().empty());
  handler_.read_on();
  EXPECT_TRUE(kvferry::testing::eventually([&] {
    EXPECT_TRUE(client_->call(peer_->handle(), Ping{}, soon()).ok());
    return handler_.all_aborted() == std::vector<PutId>{17};
  }));
  EXPECT_EQ(client_->owed(), 0u);
}

TEST_F(StoreRpc, CallsFailAtOnceWhenThePeerIsLost) {
  auto call = client_->start(peer_->handle(), Exists{}, soon());
  {
    std::unique_lock lock(handler_.mutex);
    ASSERT_TRUE(handler_.changed.wait_for(lock, kPatience, [&] { return handler_.waiting == 1; }));
  }
  std::thread closer([&] { server_->close(); });
  EXPECT_EQ(call.finish().status().code(), Code::kPeerLost);
  handler_.let_go();
  closer.join();
  EXPECT_EQ(client_->call(peer_->handle(), Ping{}, soon()).status().code(), Code::kPeerLost);
  EXPECT_EQ(handler_.losses, 1u);
}

// Who waits first reads the connection, for the others, too.
TEST_F(StoreRpc, ACallerThatReadsServesTheOthers) {
  std::thread first([&] { EXPECT_TRUE(client_->call(peer_->handle(), Exists{}, soon()).ok()); });
  {
    std::unique_lock lock(handler_.mutex);
    ASSERT_TRUE(handler_.changed.wait_for(lock, kPatience, [&] { return handler_.waiting == 1; }));
  }
  for (int n = 0; n < 100; ++n) EXPECT_TRUE(client_->call(peer_->handle(), Ping{}, soon()).ok());
  std::thread second([&] { EXPECT_TRUE(client_->call(peer_->handle(), GetInline{}, soon()).ok()); });
  second.join();
  handler_.let_go();
  first.join();
}

TEST_F(StoreRpc, ACallerThatReadsLearnsThatThePeerIsLost) {
  ASSERT_TRUE(client_->call(peer_->handle(), Ping{}, soon()).ok());  // its own thread rests
  Status status;
  std::thread caller([&] { status = client_->call(peer_->handle(), Exists{}, soon()).status(); });
  {
    std::unique_lock lock(handler_.mutex);
    ASSERT_TRUE(handler_.changed.wait_for(lock, kPatience, [&] { return handler_.waiting == 1; }));
  }
  for (const auto& peer : server_->engine().peers()) peer->close();
  caller.join();
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
  handler_.let_go();
}

TEST_F(StoreRpc, LongAnswersArriveWhole) {
  std::vector<RpcEndpoint::Call<GetInline>> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(client_->start(peer_->handle(), GetInline{}, soon()));
  for (auto& call : calls) {
    const auto answer = call.finish();
    ASSERT_TRUE(answer.ok()) << answer.status().to_string();
    EXPECT_TRUE(std::ranges::equal((*answer)->results.at(0).value, handler_.long_value));
  }
}

TEST_F(StoreRpc, RefusesWhatTheHandlerDoesNotKnowAndServesOn) {
  EXPECT_EQ(client_->call(peer_->handle(), Members{}, soon()).status().code(), Code::kUnsupported);
  EXPECT_TRUE(client_->call(peer_->handle(), Ping{}, soon()).ok());
}

TEST_F(StoreRpc, AMalformedRequestEndsTheConnectionOnly) {
  Bytes body = encode_request(5, Ping{});
  body.push_back(std::byte{1});
  ASSERT_TRUE(client_->engine().send(peer_->handle(), as_text(body), kPatience).ok());
  const Deadline patience = soon();
  while (peer_->status().ok() && !expired(patience)) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_FALSE(peer_->status().ok());
  EXPECT_EQ(server_->malformed(), 1u);
  const auto again = client_->engine().connect(server_->engine().endpoint(), {}, kPatience);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(client_->call((*again)->handle(), Ping{}, soon()).ok());
}

TEST_F(StoreRpc, OtherMessagesGoToTheInbox) {
  ASSERT_TRUE(client_->engine().send(peer_->handle(), "hello", kPatience).ok());
  const auto message = server_->engine().next_message(kPatience);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->body, "hello");
}

TEST_F(StoreRpc, MapsWhatThePeerAllocated) {
  auto made = server_->engine().allocate(8192, "readable", kRemoteRead);
  auto writable = server_->engine().allocate(4096, "writable", kRemoteRead | kRemoteWrite);
  ASSERT_TRUE(made.ok() && writable.ok());
  static_cast<std::byte*>(made->second)[5] = std::byte{9};
  const auto seen = peer_->map(made->first.key, kPatience);
  ASSERT_TRUE(seen.ok()) << seen.status().to_string();
  ASSERT_EQ(seen->size(), 8192u);
  EXPECT_EQ((*seen)[5], std::byte{9});
  const auto shared = peer_->map(writable->first.key, kPatience);
  ASSERT_TRUE(shared.ok());
  (*shared)[0] = std::byte{3};
  EXPECT_EQ(static_cast<std::byte*>(writable->second)[0], std::byte{3});
  const auto again = peer_->map(made->first.key, kPatience);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->data(), seen->data());

  std::vector<std::byte> own(64);
  const auto plain = server_->engine().register_memory(own.data(), own.size(), "plain", kRemoteRead, MemoryKind::kHost);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(peer_->map(plain->key, kPatience).status().code(), Code::kUnsupported);
  EXPECT_FALSE(peer_->map({77, 1}, kPatience).ok());
  server_->close();
  EXPECT_EQ((*shared)[1], std::byte{0});  // still mapped
}

}  // namespace
}  // namespace kvferry::store
