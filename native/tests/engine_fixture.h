// Helpers for tests that run whole engines.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/engine.h"

namespace kvferry::testing {

inline constexpr milliseconds kPatience{20000};

#define ASSERT_OK(expr)                                                 \
  do {                                                                  \
    const ::kvferry::Status kvf_test_status_ = (expr);                  \
    ASSERT_TRUE(kvf_test_status_.ok()) << kvf_test_status_.to_string(); \
  } while (0)
#define EXPECT_OK(expr)                                                 \
  do {                                                                  \
    const ::kvferry::Status kvf_test_status_ = (expr);                  \
    EXPECT_TRUE(kvf_test_status_.ok()) << kvf_test_status_.to_string(); \
  } while (0)

inline EngineOptions options_for(std::vector<std::string> transports) {
  EngineOptions options;
  options.transports = std::move(transports);
  return options;
}

// What both ends must agree on: "" (nothing), "secret" (the frames are tagged), or "tls" (with a key from the secret).
inline EngineOptions secured(EngineOptions options, std::string_view security) {
  if (security != "") options.cluster_secret = "sixteen bytes or more";
  options.tls = security == "tls";
  return options;
}

inline std::unique_ptr<Engine> make_engine(EngineOptions options = {}) {
  auto engine = Engine::create(std::move(options));
  if (!engine.ok()) {
    ADD_FAILURE() << engine.status().to_string();
    return nullptr;
  }
  return std::move(engine).value();
}

// Every byte depends on its place and the seed, so that a shifted or mixed copy shows.
inline std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t word) {
  std::uint64_t x = (seed << 40) ^ word;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 32);
}
inline std::byte pattern(std::uint64_t seed, std::uint64_t place) {
  return static_cast<std::byte>((pattern_word(seed, place / 8) >> (place % 8 * 8)) & 0xff);
}

// AddressSanitizer would spend most of a test here.
__attribute__((no_sanitize("address", "undefined"))) inline void fill(std::span<std::byte> memory, std::uint64_t seed) {
  const std::size_t words = memory.size() / 8;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = pattern_word(seed, i);  // little-endian, as pattern() has it
    std::memcpy(&memory[i * 8], &word, sizeof(word));
  }
  for (std::size_t i = words * 8; i < memory.size(); ++i) memory[i] = pattern(seed, i);
}

struct Buffer {
  std::vector<std::byte> bytes;
  RegionInfo region;
};

inline Buffer register_buffer(Engine& engine, std::uint64_t length, std::uint64_t seed,
                              std::uint8_t access = kRemoteRead | kRemoteWrite, std::string name = "buffer") {
  Buffer buffer;
  buffer.bytes.resize(length);
  fill(buffer.bytes, seed);
  auto region = engine.register_memory(buffer.bytes.data(), length, std::move(name), access, MemoryKind::kHost);
  EXPECT_TRUE(region.ok()) << region.status().to_string();
  if (region.ok()) buffer.region = *region;
  return buffer;
}

inline std::shared_ptr<Peer> connect(Engine& from, const Engine& to) {
  auto peer = from.connect(to.endpoint(), to.node_id(), kPatience);
  if (!peer.ok()) {
    ADD_FAILURE() << peer.status().to_string();
    return nullptr;
  }
  return std::move(peer).value();
}

inline Result<std::shared_ptr<Transfer>> start(Engine& engine, const std::shared_ptr<Peer>& peer,
                                               const std::vector<Piece>& pieces, Op op, SubmitOptions options = {}) {
  auto plan = engine.prepare(peer, pieces, op);
  if (!plan.ok()) return plan.status();
  return engine.submit(*plan, std::move(options));
}

// Runs to the end; the transfer's status, or why it could not be started or did not settle.
inline Status run(Engine& engine, const std::shared_ptr<Peer>& peer, const std::vector<Piece>& pieces, Op op,
                  SubmitOptions options = {}) {
  auto transfer = start(engine, peer, pieces, op, std::move(options));
  if (!transfer.ok()) return transfer.status();
  if (!(*transfer)->wait(kPatience)) return {Code::kInternal, "the transfer did not settle"};
  return (*transfer)->status();
}

}  // namespace kvferry::testing
