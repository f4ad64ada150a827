// Writes seeds: one valid input per message and form, so that the fuzzers start past the first checks. What they led to
// is committed beside this file, in corpus/ (run.sh --minimize). usage: make_corpus DIRECTORY
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/deadline.h"
#include "base/tls.h"
#include "store/log/erasures.h"
#include "store/log/format.h"
#include "store_samples.h"
#include "wire/frame.h"
#include "wire/messages.h"

using namespace kvferry;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& directory, const std::string& name, ByteView bytes) {
  fs::create_directories(directory);
  std::ofstream(directory / name, std::ios::binary) << as_text(bytes);
}

// The first byte says how the stream is read: see channel_fuzz.cc.
void put_stream(const fs::path& root, const std::string& name, const std::vector<Bytes>& frames, std::uint8_t how = 0) {
  ByteWriter writer;
  writer.u8(how);
  for (const Bytes& frame : frames) writer.raw(frame);
  put(root / "channel_fuzz", name, writer.take());
}

template <typename Message>
void put_message(const fs::path& root, FrameType type, const Message& message, std::uint8_t flag = 0,
                 const std::string& form = "") {
  const Bytes body = message.encode();
  ByteWriter selected;
  selected.u8(static_cast<std::uint8_t>(static_cast<std::uint8_t>(type) | flag));
  selected.raw(body);
  const std::string name = std::string(frame_type_name(type)) + form;
  put(root / "messages_fuzz", name + (flag != 0 ? "-checksums" : ""), selected.take());
  const Bytes frame = encode_frame(type, 7, body);
  put(root / "frame_fuzz", name, frame);
  put_stream(root, name, {frame});
}

void put_messages(const fs::path& root) {
  wire::Hello hello;
  hello.self.bytes.fill(1);
  hello.endpoint = "127.0.0.1:4000";
  hello.shm_name = "unix:@kvferry";
  hello.rails = {{"10.0.0.1:4001", 100000}, {"[fd00::1]:4002", 0}};
  put_message(root, FrameType::kHello, hello);
  wire::HelloAck ack;
  ack.self.bytes.fill(2);
  ack.endpoint = "[::1]:4000";
  ack.rails = hello.rails;
  put_message(root, FrameType::kHelloAck, ack);
  put_message(root, FrameType::kAuth, wire::Auth{});
  put_message(root, FrameType::kError, wire::Error{Code::kStale, "replaced"});
  put_message(root, FrameType::kRegions,
              wire::Regions{"metadata", {{{1, 1}, 4096, MemoryKind::kHost, 1, "layer.0"}, {{2, 5}, 64, {}, 3, "b"}}});
  put_message(root, FrameType::kGoodbye, wire::Goodbye{"closing"});
  const std::vector<wire::PieceDescriptor> pieces{{{1, 1}, 0, 64}, {{2, 1}, 4096, 65536}};
  put_message(root, FrameType::kRead, wire::Read{pieces});
  put_message(root, FrameType::kReadData, wire::ReadData{64, {{Code::kOk, 5}, {Code::kStale, 0}}});
  put_message(root, FrameType::kWrite, wire::Write{pieces, {}});
  put_message(root, FrameType::kWrite, wire::Write{pieces, {1, 2}}, 0x80);
  put_message(root, FrameType::kWriteAck, wire::WriteAck{{Code::kOk, Code::kStale}});
  put_message(root, FrameType::kRead, wire::Read{pieces, 1}, 0, "-remembered");
  put_message(root, FrameType::kRead, wire::Read{{}, 4096}, 0, "-known");
  put_message(root, FrameType::kReadData, wire::ReadData{65600, {}}, 0, "-all");
  put_message(root, FrameType::kWrite, wire::Write{{}, {}, 7}, 0, "-known");
  put_message(root, FrameType::kWrite, wire::Write{{}, {1, 2}, 7}, 0x80, "-known");
  put_message(root, FrameType::kWriteAck, wire::WriteAck{}, 0, "-all");
  put(root / "frame_fuzz", "FENCE", encode_frame(FrameType::kFence, 3, {}));
  put(root / "frame_fuzz", "FENCED", encode_frame(FrameType::kFenced, 3, {}));
  put_stream(root, "conversation",
             {encode_frame(FrameType::kPing, 1, {}), encode_frame(FrameType::kPong, 1, {}),
              encode_frame(FrameType::kRegionsRequest, 2, {})});
  put_message(root, FrameType::kShmAttached, wire::ShmAttached{4});
  put_message(root, FrameType::kArenaRequest, wire::ArenaRequest{1});
  put_message(root, FrameType::kArena, wire::ArenaGrant{1, 1u << 20});
}

void put_store_messages(const fs::path& root) {
  const fs::path directory = root / "store_messages_fuzz";
  store::testing::for_each_sample([&]<typename Request, typename Answer>(const Request& request, const Answer& answer) {
    const std::string name(store::type_name(Request::kType));
    put(directory, name, store::encode_request(7, request));
    put(directory, name + "-answer", store::encode_answer<Request>(7, answer));
    put(directory, name + "-refusal", store::encode_answer<Request>(7, Status(Code::kUnavailable, "draining")));
  });
}

void put_endpoints(const fs::path& root) {
  int number = 0;
  for (const std::string_view text :
       {"127.0.0.1:8000", "[::1]:8000", "[fe80::1%lo]:1", "[::ffff:127.0.0.1]:80", "unix:/run/kvf.sock", "unix:@name",
        "localhost:0", "::1:80", "0123456789abcdef0123456789ABCDEF"}) {
    put(root / "endpoint_fuzz", std::to_string(number++), as_byte_view(text));
  }
}

void put_directories(const fs::path& root) {
  for (const std::uint32_t arena : {0U, 3U}) {
    ByteWriter writer;
    writer.u8(1);  // the right header
    for (const std::uint32_t id : {1U, 2U}) {
      const std::uint64_t words[8] = {2,
                                      id | std::uint64_t{5} << 32,
                                      0x7f0000000000,
                                      65536,
                                      3 | std::uint64_t{arena} << 32,
                                      arena * std::uint64_t{4096},
                                      0,
                                      0};
      for (const std::uint64_t word : words) writer.u64(word);
    }
    put(root / "region_directory_fuzz", std::to_string(arena), writer.take());
  }
  put(root / "region_directory_fuzz", "wrong-header", Bytes(128));
}

// One of each kind of tampering, over two frames, by either way of reading.
void put_tampered(const fs::path& root) {
  for (std::uint8_t how = 0; how < 6; ++how) {
    for (const int reader : {0, 132}) {  // 132 = 128 + 4: keeps the remainder by 6
      ByteWriter writer;
      writer.u8(static_cast<std::uint8_t>(reader + how));
      writer.u8(0);
      writer.u8(how);
      for (const std::string_view body : {"first", "second"}) {
        writer.u8(1);
        writer.u8(static_cast<std::uint8_t>(body.size()));
        writer.raw(as_byte_view(body));
      }
      put(root / "tagged_fuzz", std::to_string(how) + (reader == 0 ? "" : "-reader"), writer.take());
    }
  }
}

void put_handshakes(const fs::path& root) {
  wire::Hello hello;
  hello.self.bytes.fill(1);
  hello.has_secret = true;
  wire::HelloAck ack;
  ack.self.bytes.fill(2);
  ack.has_secret = true;
  for (const std::uint8_t tls : {std::uint8_t{0}, std::uint8_t{1}}) {
    hello.expected = tls != 0 ? ack.self : NodeId();
    const Bytes first = hello.encode();
    ByteWriter writer;
    writer.u8(tls);
    writer.u8(static_cast<std::uint8_t>(first.size() >> 8));
    writer.u8(static_cast<std::uint8_t>(first.size()));
    writer.raw(first);
    writer.raw(ack.encode());
    put(root / "handshake_fuzz", tls != 0 ? "tls" : "plain", writer.take());
  }
}

// What a TLS client says first, and what a server with another key answers to it.
Bytes first_words(const TlsContext& node, TlsSide side, ByteView heard) {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0) return {};
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  if (::send(theirs.get(), heard.data(), heard.size(), MSG_NOSIGNAL) < 0) return {};
  (void)node.open(ours.get(), side, Wait{deadline_in(milliseconds(100))});
  Bytes said(16u << 10);
  const ssize_t got = ::recv(theirs.get(), said.data(), said.size(), MSG_DONTWAIT);
  said.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return said;
}

void put_tls(const fs::path& root) {
  const auto node = TlsContext::create({});
  if (!node.ok()) return;  // no OpenSSL 3 here: the committed corpus has some
  const auto put_words = [&](std::uint8_t side, const std::string& name, ByteView words) {
    ByteWriter writer;
    writer.u8(side);
    writer.raw(words);
    put(root / "tls_fuzz", name, writer.take());
  };
  const Bytes client = first_words(**node, TlsSide::kConnect, {});
  put_words(0, "client", client);
  put_words(1, "server", first_words(**node, TlsSide::kAccept, client));
  put_words(0, "no-tls", encode_frame(FrameType::kPing, 1, {}));
}

void put_segments(const fs::path& root) {
  using namespace kvferry::store::log;
  const fs::path into = root / "segment_fuzz";
  const auto put_how = [&](const std::string& name, std::uint8_t how, const std::vector<Bytes>& parts) {
    ByteWriter writer;
    writer.u8(how);
    for (const Bytes& part : parts) writer.raw(part);
    put(into, name, writer.take());
  };
  put_how("header", 0, {SegmentHeader{3, 7, 1 << 20, 4096}.encode()});
  std::vector<RecordEntry> entries(2);
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    entries[i].record = i;
    entries[i].id = {1, i};
    entries[i].sequence = i + 1;
    entries[i].offset = 12288 + i * 65536;
    entries[i].bytes = 65536 - i;
    entries[i].key = "key";
    entries[i].attributes = "attributes";
    entries[i].sums = {5};
  }
  ByteWriter writer;
  for (const RecordEntry& entry : entries) entry.encode(writer);
  const Bytes index = writer.take();
  GroupHead head;
  head.salt = 7;
  head.offset = 8192;
  head.bytes = 4096 + 2 * 65536;
  head.records = 2;
  head.index_bytes = index.size();
  head.index_sum = crc32c(index);
  put_how("group", 1, {head.encode(), index});
  put_how("group-right", 5, {head.encode(), index});
  Trailer trailer{7, 147456, index.size(), 2, crc32c(index), 2};
  put_how("footer", 2, {index, trailer.encode()});
  put_how("footer-right", 6, {index, trailer.encode()});
  Erasures erased(4096);
  erased.add(5);
  Bytes unit(4096);
  erased.copy_unit(0, unit);
  put_how("erasures", 3, {unit});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: make_corpus DIRECTORY\n", stderr), 2;
  put_messages(argv[1]);
  put_store_messages(argv[1]);
  put_endpoints(argv[1]);
  put_directories(argv[1]);
  put_tampered(argv[1]);
  put_handshakes(argv[1]);
  put_tls(argv[1]);
  put_segments(argv[1]);
  return 0;
}
