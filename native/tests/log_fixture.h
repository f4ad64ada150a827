// What the tests of the store's log share: objects that can be told apart, and a disk that fails on purpose.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "engine_fixture.h"
#include "faulty_queue.h"
#include "mapped_files.h"
#include "store/log/disk.h"
#include "store/log/log.h"

namespace kvferry::testing {

using store::Log;
using store::LogErase;
using store::LogOptions;
using store::LogPlace;
using store::LogRead;
using store::LogRecord;
using store::LogUsage;
using store::LogWrite;
using store::ObjectId;

inline Deadline soon() { return deadline_in(kPatience); }

// Everything about an object follows from its number and its size.
struct Object {
  std::uint64_t number = 0;
  std::uint64_t size = 0;

  ObjectId id() const { return {pattern_word(7, number), number}; }
  std::string key() const { return "key " + std::to_string(number); }
  std::string attributes() const { return std::string(number % 50, 'a'); }
  store::ContentDigest digest() const { return {number, size}; }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(size);
    fill(out, number);
    return out;
  }
};

class Appended {  // keeps what a LogWrite points to
 public:
  explicit Appended(const Object& object)
      : key_(object.key()), attributes_(object.attributes()), bytes_(object.bytes()), piece_(bytes_) {
    write_.record = {object.id(), key_, object.size, object.digest(), attributes_};
    write_.pieces = std::span(&piece_, 1);
  }
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;
  const LogWrite& write() const { return write_; }

 private:
  const std::string key_, attributes_;
  const std::vector<std::byte> bytes_;
  std::span<const std::byte> piece_;
  LogWrite write_;
};

inline Result<LogPlace> append(Log& log, const Object& object, Deadline deadline = soon()) {
  const Appended appended(object);
  return log.append(appended.write().record, appended.write().pieces, deadline);
}

inline std::vector<Result<LogPlace>> append_all(Log& log, const std::vector<Object>& objects) {
  std::vector<std::unique_ptr<Appended>> kept;
  std::vector<LogWrite> writes;
  for (const Object& object : objects) {
    kept.push_back(std::make_unique<Appended>(object));
    writes.push_back(kept.back()->write());
  }
  return log.append_batch(writes, soon());
}

// OK only if the whole object is there and right; kInternal: wrong bytes.
inline Status check(Log& log, const Object& object, const LogPlace& place) {
  std::vector<std::byte> read(object.size);
  KVF_RETURN_IF_ERROR(log.read(place, object.id(), 0, read, soon()));
  return read == object.bytes() ? Status() : Status(Code::kInternal, "wrong bytes of " + object.key());
}

struct Found {
  Object object;
  LogPlace place;
};

// Live records by the object's number; checks what the record says of itself.
class RecoveredObjects {
 public:
  Log::Recovered callback() {
    return [this](const LogRecord& record, const LogPlace& place) {
      const Object object{record.id.lo, record.bytes};
      EXPECT_EQ(record.id, object.id());
      EXPECT_EQ(record.key, object.key());
      EXPECT_EQ(record.attributes, object.attributes());
      EXPECT_EQ(record.digest, object.digest());
      EXPECT_EQ(place.bytes, record.bytes);
      EXPECT_TRUE(found.emplace(object.number, Found{object, place}).second) << object.key() << " twice";
    };
  }
  std::map<std::uint64_t, Found> found;
};

inline std::uint64_t blocks_in(const std::string& directory) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

inline std::vector<std::string> segment_files(const std::string& directory) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("segment-")) out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Soon, that is: the background thread may be at work.
inline bool usage_is_exact(const Log& log, const std::string& directory) {
  const Deadline patience = soon();
  while (log.usage().disk_bytes != blocks_in(directory)) {
    if (expired(patience)) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// The real disk, except where the test says otherwise. The test's functions are called one at a time, from any thread,
// and until the log is gone: that outlives the body of the test, so they hold what they need by value.
class FaultyDisk final : public store::log::Disk {
 public:
  using FileFault = std::function<Status(const std::string& what, const std::string& path)>;

  void fail_requests(FaultyQueue::Fault fault) {
    const std::lock_guard lock(mutex_);
    request_fault_ = std::move(fault);
  }
  void fail_files(FileFault fault) {
    const std::lock_guard lock(mutex_);
    file_fault_ = std::move(fault);
  }
  void heal() {
    fail_requests(no_fault);
    fail_files([](const std::string&, const std::string&) { return Status(); });
  }

  Result<store::log::LogFile> create(const std::string& path, std::uint64_t bytes, bool direct) override {
    KVF_RETURN_IF_ERROR(ask("create", path));
    return real_->create(path, bytes, direct);
  }
  Result<store::log::LogFile> open(const std::string& path, bool direct) override {
    KVF_RETURN_IF_ERROR(ask("open", path));
    return real_->open(path, direct);
  }
  Status truncate(const store::log::LogFile& file, std::uint64_t bytes) override {
    KVF_RETURN_IF_ERROR(ask("truncate", file.path));
    return real_->truncate(file, bytes);
  }
  Status extend(const store::log::LogFile& file, std::uint64_t bytes) override {
    KVF_RETURN_IF_ERROR(ask("extend", file.path));
    return real_->extend(file, bytes);
  }
  Status rename(const std::string& from, const std::string& to) override {
    KVF_RETURN_IF_ERROR(ask("rename", from));
    return real_->rename(from, to);
  }
  Status remove(const std::string& path) override {
    KVF_RETURN_IF_ERROR(ask("remove", path));
    return real_->remove(path);
  }
  Status sync_directory(const std::string& path) override {
    KVF_RETURN_IF_ERROR(ask("sync", path));
    return real_->sync_directory(path);
  }
  Result<std::vector<std::string>> list(const std::string& directory) override { return real_->list(directory); }
  std::shared_ptr<IoQueue> make_queue() override {
    return std::make_shared<FaultyQueue>([this](IoRequest* request) {
      const std::lock_guard lock(mutex_);
      return request_fault_(request);
    });
  }

 private:
  Status ask(const std::string& what, const std::string& path) {
    const std::lock_guard lock(mutex_);
    return file_fault_(what, path);
  }
  const std::shared_ptr<Disk> real_ = store::log::real_disk(false);
  std::mutex mutex_;
  FaultyQueue::Fault request_fault_ = no_fault;
  FileFault file_fault_ = [](const std::string&, const std::string&) { return Status(); };
};

class LogTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSegment = 1 << 20;

  LogOptions options() const {
    LogOptions options;
    options.directory = folder_.file("log");
    options.capacity = 16 * kSegment;
    options.segment_bytes = kSegment;
    options.disk = disk_;
    return options;
  }
  void open() { open(options()); }
  void open(LogOptions options) {
    recovered_ = {};
    auto log = Log::open(std::move(options), recovered_.callback());
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    log_ = *std::move(log);
  }
  void reopen() {
    log_.reset();
    open();
  }
  // As if the process had died now: the files as they are, opened elsewhere. Nothing is appended, and nothing
  // compacted, meanwhile.
  std::unique_ptr<Log> open_copy(RecoveredObjects* recovered, std::uint64_t capacity = 16 * kSegment) {
    const std::string copy = folder_.file("copy");
    const Deadline patience = soon();
    std::error_code error;
    do {  // again if the background thread cut or renamed a file meanwhile
      std::filesystem::remove_all(copy);
      error.clear();
      std::filesystem::copy(folder_.file("log"), copy, error);
    } while (error && !expired(patience));
    EXPECT_FALSE(error) << error.message();
    LogOptions options = this->options();
    options.directory = copy;
    options.capacity = capacity;
    auto log = Log::open(options, recovered->callback());
    EXPECT_TRUE(log.ok()) << log.status().to_string();
    return log.ok() ? *std::move(log) : nullptr;
  }
  LogPlace must_append(const Object& object) {
    const auto place = append(*log_, object);
    EXPECT_TRUE(place.ok()) << place.status().to_string();
    return place.ok() ? *place : LogPlace();
  }

  TemporaryFolder folder_;
  std::shared_ptr<FaultyDisk> disk_;  // nullptr: the real one
  std::unique_ptr<Log> log_;
  RecoveredObjects recovered_;
};

}  // namespace kvferry::testing
