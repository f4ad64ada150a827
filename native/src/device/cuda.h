// NVIDIA's driver library, libcuda.so.1 (it comes with the kernel driver, not with the toolkit).
#pragma once

#include <memory>

#include "device/driver.h"

namespace kvferry {

// kUnavailable: the library or a device is missing. kUnsupported: the library lacks a function.
Result<std::unique_ptr<DeviceDriver>> load_cuda_driver();

}  // namespace kvferry
