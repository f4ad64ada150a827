#include "store/log/spares.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "store/log/segment.h"

namespace kvferry::store::log {

Spares::~Spares() {
  while (drop_one(0)) continue;
}

void Spares::add(LogFile file, std::uint64_t disk_bytes) {
  const std::lock_guard lock(mutex_);
  const auto place =
      std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.disk_bytes >= disk_bytes; });
  spares_.insert(place, {std::move(file), disk_bytes});
  account_.spare_bytes += disk_bytes;
}

std::optional<Spares::Spare> Spares::pop(bool longest, std::size_t keep) {
  const std::lock_guard lock(mutex_);
  if (spares_.size() <= keep) return std::nullopt;
  const auto place = longest ? spares_.end() - 1 : spares_.begin();
  Spare spare = std::move(*place);
  spares_.erase(place);
  return spare;
}

std::optional<LogFile> Spares::take() {
  std::optional<Spare> spare = pop(true, 0);
  if (!spare) return std::nullopt;
  account_.spare_bytes -= spare->disk_bytes;
  account_.disk_bytes -= spare->disk_bytes;
  return std::move(spare->file);
}

bool Spares::drop_one(std::size_t keep) {
  std::optional<Spare> spare = pop(false, keep);
  if (!spare) return false;
  queues_.forget_file(spare->file.fd.get());
  const Status removed = disk_->remove(spare->file.path);
  if (!removed.ok()) log_event(LogLevel::kWarning, "log_spare_stays", {{"why", removed}});
  spare->file.fd.reset();
  account_.spare_bytes -= spare->disk_bytes;
  account_.disk_bytes -= spare->disk_bytes;
  return true;
}

}  // namespace kvferry::store::log
