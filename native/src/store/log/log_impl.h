// The log put together: appending and reading in the caller's threads, one thread of our own for the rest.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/log/compactor.h"
#include "store/log/directory_lock.h"
#include "store/log/log.h"
#include "store/log/segment_table.h"

namespace kvferry::store::log {

class LogImpl final : public Log {
 public:
  LogImpl(LogOptions options, DirectoryLock lock);
  ~LogImpl() override { close(); }

  Status start(const Recovered& recovered);

  Result<LogPlace> append(const LogRecord& record, ConstPieces pieces, Deadline deadline) override;
  std::vector<Result<LogPlace>> append_batch(std::span<const LogWrite> writes, Deadline deadline) override;
  Status read(const LogPlace& place, const ObjectId& id, std::uint64_t offset, std::span<std::byte> target,
              Deadline deadline) override;
  std::vector<Status> read_batch(std::span<const LogRead> reads, Deadline deadline) override;
  Status erase(const ObjectId& id, const LogPlace& place, Deadline deadline) override;
  std::vector<Status> erase_batch(std::span<const LogErase> erases, Deadline deadline) override;
  std::vector<LogErase> cheapest_to_erase() const override { return table_.cheapest_to_erase(); }
  LogUsage usage() const override;
  std::string note() const override { return note_; }
  Status trouble() const override { return table_.trouble(); }
  Clock::time_point progress() const override { return context_.queues.progress(); }
  void close() override;

 private:
  using Results = std::vector<Result<LogPlace>>;
  Status check(const LogWrite& write) const;
  void append_group(std::span<const LogWrite> writes, const std::vector<std::size_t>& which, Results* results,
                    std::vector<Reservation>* kept, Deadline deadline);
  void keep();

  DirectoryLock lock_;  // given back last
  LogContext context_;
  SegmentTable table_;
  Compactor compactor_;
  std::string note_;
  std::thread keeper_;
};

}  // namespace kvferry::store::log
