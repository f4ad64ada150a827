#include "engine/files.h"

#include <memory>
#include <utility>

#include "base/log.h"

namespace kvferry {

Result<RegionInfo> Files::open(const std::string& path, const FileOptions& options) {
  KVF_ASSIGN_OR_RETURN(const std::shared_ptr<OpenFile> file, OpenFile::open(path, options));
  KVF_ASSIGN_OR_RETURN(RegionInfo region,
                       regions_.add({nullptr, file->length(), path, options.access, MemoryKind::kFile, 0, 0}));
  table_.add(region.key, file);
  log_event(LogLevel::kInfo, "file_opened",
            {{"path", path}, {"length", file->length()}, {"how", file->note()}, {"by", queues_.note()}});
  return region;
}

Result<std::string> Files::note(RegionKey key) {
  const std::shared_ptr<OpenFile> file = table_.find(key);
  if (!file) return {Code::kNotFound, "region " + std::to_string(key.id) + " is no open file"};
  return file->note() + "; by " + queues_.note();
}

void Files::forget(RegionKey key) {
  const std::shared_ptr<OpenFile> file = table_.find(key);
  if (!file) return queues_.forget_memory(key);
  queues_.forget_file(*file);
  table_.remove(key);
}

}  // namespace kvferry
