// The one timer of an engine: pings silent peers, ends transfers whose time is up and cuts off lanes that do not come
// back from those that were ended. Its thread sleeps until the next of these is due.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kvferry/types.h"

namespace kvferry {

struct EngineCore;
class TransferImpl;

class Keeper {
 public:
  void run(EngineCore& core);      // the keeper thread: until stop()
  void expect(Deadline deadline);  // a transfer with this deadline was submitted; cheap if later than the next tick
  void watch(const std::shared_ptr<TransferImpl>& aborted);  // it is cut unless it settles soon
  void stop();

 private:
  struct Watched {
    std::weak_ptr<TransferImpl> transfer;
    Deadline cut_at;
  };
  void watch(Watched one);
  Deadline cut_overdue(Clock::time_point now);  // returns when the next one is due
  Deadline tick(EngineCore& core);              // returns when the next one is due

  std::mutex mutex_;
  std::condition_variable wake_;
  Deadline next_ = Deadline::min();  // guarded by mutex_, as is what follows
  std::vector<Watched> watched_;
  bool stopped_ = false;
};

}  // namespace kvferry
