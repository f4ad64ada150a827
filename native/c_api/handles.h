// What the opaque handles of kvferry.h hold, and how a Status reaches a C caller.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "kvferry/engine.h"
#include "kvferry/kvferry.h"

struct kvf_options {
  kvferry::EngineOptions value;
};

struct kvf_engine {
  std::unique_ptr<kvferry::Engine> engine;
  std::string endpoint;
  std::string node_id;
};

struct kvf_peer {
  std::shared_ptr<kvferry::Peer> peer;
};

struct kvf_plan {
  std::shared_ptr<const kvferry::Plan> plan;
};

struct kvf_transfer {
  std::shared_ptr<kvferry::Transfer> transfer;
};

struct kvf_message {
  kvferry::Message message;
};

namespace kvferry::c_api {

// Keeps the message for kvf_error_message() and returns the code.
kvf_code report(const Status& status);
kvf_code report(Code code, std::string message);

// Runs `body` (returning kvf_code). C cannot catch: memory that cannot be had, and whatever else the C++ library
// throws, is an error like others.
template <typename Body>
kvf_code guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report(Status(Code::kResourceExhausted, "out of memory"));
  } catch (const std::length_error&) {
    return report(Status(Code::kInvalidArgument, "a count or length is larger than memory can be"));
  } catch (const std::exception& error) {
    return report(Status(Code::kInternal, error.what()));
  }
}

template <typename T>
bool missing(const T* argument) {
  return argument == nullptr;
}
template <typename... T>
bool any_missing(const T*... arguments) {
  return (missing(arguments) || ...);
}

// For a null pointer where something is needed.
kvf_code missing_argument(const char* function);

}  // namespace kvferry::c_api
