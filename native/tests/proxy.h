// A network between two engines of one test, which may spoil or delay what it carries.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/socket.h"
#include "engine_fixture.h"
#include "process_state.h"

namespace kvferry::testing {

// Forwards connections to an engine, one of which, the `victim`-th, suffers when `offset` bytes have passed.
class Proxy {
 public:
  enum class Harm {
    kSpoil,  // a bit of what the target sends is flipped at that place
    kHold,   // what the client sends from there on is kept and delivered only at release(), even if the client left
  };

  Proxy(Endpoint target, std::size_t victim, std::size_t offset, Harm harm = Harm::kSpoil)
      : target_(std::move(target)), victim_(victim), offset_(offset), harm_(harm) {
    auto stop = Interrupt::create();
    auto fd = listen_on(*Endpoint::parse("127.0.0.1:0"), 16);
    stop_.emplace(std::move(stop).value());
    listener_ = std::move(fd).value();
    endpoint_ = *local_endpoint(listener_.get());
    acceptor_ = std::thread([this] { accept(); });
  }
  ~Proxy() {
    stop_->set();
    acceptor_.join();  // first: it adds to the others
    for (std::thread& thread : threads_) thread.join();
  }
  const Endpoint& endpoint() const { return endpoint_; }

  void answer_no_more() { deaf_ = true; }  // new connections are taken and then left alone

  std::size_t held() const { return held_; }  // bytes that were kept so far
  void release() { released_ = true; }
  bool delivered() const { return delivered_; }  // after release(): all went out, or the target took no more
  void hang_up_on_client() {                     // of the victim, whose bytes go on being held
    const auto line = victim_line();
    ASSERT_TRUE(line != nullptr);
    shut_down(line->client.get());
  }

 private:
  struct Line {
    UniqueFd client, server;
  };

  Wait patience() const { return Wait{deadline_in(kPatience), &*stop_}; }
  std::shared_ptr<Line> victim_line() const { return std::atomic_load(&victim_line_); }

  void accept() {
    for (std::size_t number = 1;; ++number) {
      auto accepted = accept_from(listener_.get(), patience());
      if (!accepted.ok()) return;
      if (deaf_) {
        silent_.push_back(std::move(accepted->fd));
        continue;
      }
      auto onward = connect_to(target_, patience());
      if (!onward.ok()) return;
      const auto line = std::make_shared<Line>();
      line->client = std::move(accepted->fd);
      line->server = std::move(onward).value();
      const bool hold = number == victim_ && harm_ == Harm::kHold;
      if (hold) std::atomic_store(&victim_line_, line);
      threads_.emplace_back([this, line, hold] {
        hold ? forward_late(*line) : forward(line->client, line->server, SIZE_MAX);
        shut_down(line->client.get());
        shut_down(line->server.get());
      });
      const std::size_t spoil = number == victim_ && harm_ == Harm::kSpoil ? offset_ : SIZE_MAX;
      threads_.emplace_back([this, line, hold, spoil] {
        forward(line->server, line->client, spoil);
        if (hold) return;  // the other direction goes on
        shut_down(line->client.get());
        shut_down(line->server.get());
      });
    }
  }
  // The next bytes, or none at the end of the stream.
  std::size_t receive(const UniqueFd& from, std::vector<std::byte>* bytes) {
    bytes->resize(65536);
    if (!wait_for(from.get(), POLLIN, patience()).ok()) return 0;
    const ssize_t got = ::read(from.get(), bytes->data(), bytes->size());
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  void forward(const UniqueFd& from, const UniqueFd& to, std::size_t spoil) {
    std::vector<std::byte> bytes;
    for (std::size_t seen = 0;;) {
      const std::size_t count = receive(from, &bytes);
      if (count == 0) return;
      if (spoil >= seen && spoil < seen + count) bytes[spoil - seen] ^= std::byte{1};
      seen += count;
      if (!send_all(to.get(), std::span(bytes).first(count), patience()).ok()) return;
    }
  }
  void forward_late(const Line& line) {
    std::vector<std::byte> bytes, kept;
    for (std::size_t seen = 0;;) {
      const std::size_t count = receive(line.client, &bytes);
      if (count == 0) break;
      const std::size_t now = std::min(count, offset_ - std::min(offset_, seen));
      if (!send_all(line.server.get(), std::span(bytes).first(now), patience()).ok()) return;
      kept.insert(kept.end(), bytes.begin() + static_cast<std::ptrdiff_t>(now),
                  bytes.begin() + static_cast<std::ptrdiff_t>(count));
      seen += count;
      held_ = kept.size();
    }
    (void)eventually([this] { return released_ || stop_->is_set(); });
    (void)send_all(line.server.get(), kept, patience());  // the target may have closed its end: that is the point
    delivered_ = true;
  }

  const Endpoint target_;
  const std::size_t victim_, offset_;
  const Harm harm_;
  std::optional<Interrupt> stop_;
  UniqueFd listener_;
  Endpoint endpoint_;
  std::shared_ptr<Line> victim_line_;
  std::atomic<std::size_t> held_{0};
  std::atomic<bool> released_{false}, delivered_{false}, deaf_{false};
  std::vector<UniqueFd> silent_;      // the acceptor's, as are the next
  std::vector<std::thread> threads_;  // that forward
  std::thread acceptor_;
};

}  // namespace kvferry::testing
