// AMD's runtime library, libamdhip64.so.
#pragma once

#include <memory>

#include "device/driver.h"

namespace kvferry {

// kUnavailable: the library or a device is missing. kUnsupported: the library lacks a function.
Result<std::unique_ptr<DeviceDriver>> load_hip_driver();

}  // namespace kvferry
