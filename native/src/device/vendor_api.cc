#include "device/vendor_api.h"

#include <array>
#include <utility>

#include "base/log.h"

namespace kvferry {
namespace {

// A device is current for a scope.
class Current {
 public:
  Current(VendorApi& api, int device) : api_(api), previous_(api.enter(device)) {}
  ~Current() {
    if (previous_.ok()) api_.leave(*previous_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  const Status& status() const { return previous_.status(); }

 private:
  VendorApi& api_;
  const Result<void*> previous_;
};

// Mark number n lives in event n % kMarks.
class Stream final : public CopyStream {
 public:
  Stream(VendorApi& api, int device) : api_(api), device_(device) {}
  Status open();
  ~Stream() override;

  Status copy(void* to, const void* from, std::uint64_t length) override;
  Result<std::uint64_t> record() override;
  Result<bool> reached(std::uint64_t mark) override;

 private:
  VendorApi& api_;
  const int device_;
  void* stream_ = nullptr;
  std::array<void*, kMarks> events_{};
  std::uint64_t last_ = 0;     // given out last
  std::uint64_t reached_ = 0;  // highest known: streams are in order, so all before it were reached, too
};

Status Stream::open() {
  const Current current(api_, device_);
  KVF_RETURN_IF_ERROR(current.status());
  KVF_ASSIGN_OR_RETURN(stream_, api_.create_stream());
  for (void*& event : events_) {
    KVF_ASSIGN_OR_RETURN(event, api_.create_event());
  }
  return {};
}

Stream::~Stream() {
  const Current current(api_, device_);
  if (stream_ != nullptr) {
    // No vendor has a wait with a deadline here. A copy ends by itself unless the device is lost, which is an error.
    const Status ended = api_.synchronize(stream_);
    if (!ended.ok()) {
      log_event(LogLevel::kError, "device_copy_failed",
                {{"kind", memory_kind_name(api_.kind())}, {"device", std::to_string(device_)}, {"reason", ended}});
    }
  }
  for (void* event : events_) {
    if (event != nullptr) api_.destroy_event(event);
  }
  if (stream_ != nullptr) api_.destroy_stream(stream_);
}

Status Stream::copy(void* to, const void* from, std::uint64_t length) {
  const Current current(api_, device_);
  KVF_RETURN_IF_ERROR(current.status());
  return api_.copy(to, from, length, stream_);
}

Result<std::uint64_t> Stream::record() {
  if (last_ - reached_ >= kMarks) return {Code::kResourceExhausted, "too many marks of a copy stream are open"};
  const Current current(api_, device_);
  KVF_RETURN_IF_ERROR(current.status());
  KVF_RETURN_IF_ERROR(api_.record(events_[(last_ + 1) % kMarks], stream_));
  return ++last_;
}

Result<bool> Stream::reached(std::uint64_t mark) {
  if (mark <= reached_) return true;
  KVF_ASSIGN_OR_RETURN(const bool done, api_.query(events_[mark % kMarks]));
  if (done) reached_ = mark;
  return done;
}

class VendorDriver final : public DeviceDriver {
 public:
  explicit VendorDriver(std::unique_ptr<VendorApi> api) : api_(std::move(api)) {}

  MemoryKind kind() const override { return api_->kind(); }
  std::string describe() const override {
    const int count = api_->device_count();
    return api_->describe() + ", " + std::to_string(count) + (count == 1 ? " device" : " devices");
  }
  Result<std::optional<Allocation>> inspect(const void* address) override { return api_->inspect(address); }

  Result<void*> allocate(int device, std::uint64_t length) override {
    return on<Result<void*>>(device, [&] { return api_->allocate(length); });
  }
  Status release(int device, void* memory) override {
    return on<Status>(device, [&] { return api_->release(memory); });
  }
  Result<void*> allocate_pinned(int device, std::uint64_t length) override {
    return on<Result<void*>>(device, [&] { return api_->allocate_pinned(length); });
  }
  Status release_pinned(int device, void* memory) override {
    return on<Status>(device, [&] { return api_->release_pinned(memory); });
  }
  Result<std::unique_ptr<CopyStream>> open_stream(int device) override {
    KVF_RETURN_IF_ERROR(check_device(device));
    auto stream = std::make_unique<Stream>(*api_, device);
    KVF_RETURN_IF_ERROR(stream->open());
    return std::unique_ptr<CopyStream>(std::move(stream));
  }
  Result<std::string> export_memory(const Allocation& allocation) override {
    return on<Result<std::string>>(allocation.device, [&] { return api_->export_memory(allocation); });
  }
  Result<void*> import_memory(int device, const std::string& handle) override {
    return on<Result<void*>>(device, [&] { return api_->import_memory(handle); });
  }
  Status end_import(int device, void* memory) override {
    return on<Status>(device, [&] { return api_->end_import(memory); });
  }

 private:
  Status check_device(int device) const {
    if (device >= 0 && device < api_->device_count()) return {};
    return {Code::kInvalidArgument, "there is no device " + std::to_string(device) + "; " + describe()};
  }
  template <typename Outcome, typename Body>
  Outcome on(int device, const Body& body) {
    KVF_RETURN_IF_ERROR(check_device(device));
    const Current current(*api_, device);
    KVF_RETURN_IF_ERROR(current.status());
    return body();
  }

  const std::unique_ptr<VendorApi> api_;
};

}  // namespace

std::unique_ptr<DeviceDriver> make_driver(std::unique_ptr<VendorApi> api) {
  return std::make_unique<VendorDriver>(std::move(api));
}

}  // namespace kvferry
