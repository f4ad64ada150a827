// Status, identities, deadlines, log lines.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/host_id.h"
#include "base/log.h"
#include "base/random.h"
#include "kvferry/node_id.h"
#include "kvferry/status.h"

namespace kvferry {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return {Code::kInvalidArgument, "odd"};
  return value / 2;
}

Result<int> quarter(int value) {
  KVF_ASSIGN_OR_RETURN(const int once, half(value));
  KVF_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

TEST(Status, OkIsEmptyAndErrorsCarryCodeAndText) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().to_string(), "ok");
  EXPECT_TRUE(Status(Code::kOk, "ignored").message().empty());
  const Status status(Code::kPeerLost, "gone");
  EXPECT_EQ(status.to_string(), "peer_lost: gone");
  EXPECT_EQ(status.with_context("peer 7").to_string(), "peer_lost: peer 7: gone");
  EXPECT_TRUE(Status().with_context("peer 7").ok());
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (std::uint8_t code = 0; code <= static_cast<std::uint8_t>(Code::kConflict); ++code) {
    names.insert(code_name(static_cast<Code>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Code::kConflict) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(code_name(static_cast<Code>(200)), "unknown");
}

TEST(Status, ErrnoStatusNamesTheError) {
  EXPECT_EQ(errno_status(Code::kUnavailable, "connect", ECONNREFUSED).to_string(),
            "unavailable: connect: Connection refused (errno 111)");
}

TEST(Result, AssignOrReturnPassesValueOrStatusOn) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).status().code(), Code::kInvalidArgument);
}

TEST(NodeId, RoundTripsAndRefusesOtherText) {
  const NodeId id = NodeId::random();
  EXPECT_EQ(*NodeId::parse(id.to_string()), id);
  EXPECT_EQ(NodeId::parse("0123456789abcdefFEDCBA9876543210")->to_string(), "0123456789abcdeffedcba9876543210");
  EXPECT_FALSE(NodeId::parse("").ok());
  EXPECT_FALSE(NodeId::parse(std::string(31, 'a')).ok());
  EXPECT_FALSE(NodeId::parse(std::string(33, 'a')).ok());
  EXPECT_FALSE(NodeId::parse(std::string(32, 'g')).ok());
  EXPECT_FALSE(NodeId::parse(std::string(32, '0')).ok());  // nil means "whoever answers" to connect()
}

TEST(NodeId, RandomOnesDifferAndAreNotNil) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(NodeId::random().to_string());
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_TRUE(NodeId().is_nil());
  EXPECT_FALSE(NodeId::random().is_nil());
}

TEST(HostId, ThisProcessSharesItsHostWithItself) {
  const HostId host = HostId::current();
  ASSERT_FALSE(host.is_nil());
  EXPECT_TRUE(host.same_host(HostId::current()));
  HostId other = host;
  other.net_namespace += 1;
  EXPECT_FALSE(host.same_host(other));
}

TEST(HostId, NilIsNoHostNotEvenItsOwn) { EXPECT_FALSE(HostId().same_host(HostId())); }

TEST(Deadline, SaturatesAtBothEnds) {
  EXPECT_TRUE(expired(deadline_in(milliseconds(-5))));
  EXPECT_LE(remaining(deadline_in(milliseconds::max())), kLongestWait);
  EXPECT_GT(remaining(deadline_in(milliseconds::max())), kLongestWait / 2);
  EXPECT_EQ(remaining(Deadline::max()), kLongestWait);
  EXPECT_EQ(remaining(Deadline::min()), milliseconds(0));
  EXPECT_EQ(poll_timeout_ms(Deadline::max()), std::numeric_limits<int>::max());
}

TEST(Deadline, RoundsUpSoThatAPollLoopDoesNotSpin) {
  EXPECT_GE(poll_timeout_ms(Clock::now() + std::chrono::microseconds(900)), 0);
  EXPECT_EQ(remaining(Clock::now() + std::chrono::seconds(10)), milliseconds(10000));
}

class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(level, line);
    });
  }
  ~LogCapture() {
    set_log_sink({});
    set_log_level(LogLevel::kWarning);
  }
  std::vector<std::pair<LogLevel, std::string>> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST(Log, OneEscapedLinePerEventInFieldOrder) {
  LogCapture capture;
  log_event(LogLevel::kError, "peer_lost", {{"peer", 7}, {"reason", "a \"b\"\n"}, {"empty", ""}, {"node", "ab12"}});
  ASSERT_EQ(capture.lines().size(), 1U);
  EXPECT_EQ(capture.lines()[0].second, R"(peer_lost peer=7 reason="a \"b\"\x0a" empty="" node=ab12)");
}

TEST(Log, LevelFilters) {
  LogCapture capture;
  log_event(LogLevel::kInfo, "quiet");
  set_log_level(LogLevel::kDebug);
  log_event(LogLevel::kDebug, "loud");
  ASSERT_EQ(capture.lines().size(), 1U);
  EXPECT_EQ(capture.lines()[0], std::pair(LogLevel::kDebug, std::string("loud")));
}

TEST(Log, SinkMayLogAndReplaceItself) {
  set_log_sink([](LogLevel, std::string_view) { set_log_sink([](LogLevel, std::string_view) {}); });
  log_event(LogLevel::kError, "first");  // would hang if a lock were held, crash if the running sink were destroyed
  log_event(LogLevel::kError, "second");
  set_log_sink({});
}

TEST(Log, SinkCanBeReplacedWhileOthersLog) {
  LogCapture capture;
  std::vector<std::jthread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([] {
      for (int i = 0; i < 200; ++i) log_event(LogLevel::kError, "busy", {{"i", i}});
    });
  }
  for (int i = 0; i < 50; ++i) {
    set_log_sink(
        [](LogLevel level, std::string_view line) { EXPECT_TRUE(level == LogLevel::kError && !line.empty()); });
  }
}

}  // namespace
}  // namespace kvferry
