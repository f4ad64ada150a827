// kvf_options_set: option names and value texts to EngineOptions. The names are those of docs/configuration.md.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "handles.h"

namespace kvferry::c_api {
namespace {

using Setter = std::function<Status(EngineOptions&, std::string_view)>;

Status bad_value(std::string_view value, std::string_view wanted) {
  return {Code::kInvalidArgument, "'" + std::string(value) + "' is not " + std::string(wanted)};
}

template <typename T>
Status parse_number(std::string_view text, std::string_view wanted, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc() || end != text.data() + text.size()) return bad_value(text, wanted);
  return {};
}

Setter text_of(std::string EngineOptions::*member) {
  return [member](EngineOptions& options, std::string_view value) {
    options.*member = value;
    return Status();
  };
}

Setter flag_of(bool EngineOptions::*member) {
  return [member](EngineOptions& options, std::string_view value) {
    if (value != "true" && value != "false") return bad_value(value, "true or false");
    options.*member = value == "true";
    return Status();
  };
}

template <typename T>
Setter number_of(T EngineOptions::*member) {
  return [member](EngineOptions& options, std::string_view value) {
    return parse_number(value, "a whole number in range", &(options.*member));
  };
}

Setter list_of(std::vector<std::string> EngineOptions::*member) {
  return [member](EngineOptions& options, std::string_view value) {
    std::vector<std::string> items;
    while (!value.empty()) {
      const std::size_t comma = std::min(value.find(','), value.size());
      items.emplace_back(value.substr(0, comma));
      value.remove_prefix(std::min(comma + 1, value.size()));
    }
    options.*member = std::move(items);
    return Status();
  };
}

Setter seconds_of(milliseconds EngineOptions::*member) {
  return [member](EngineOptions& options, std::string_view value) {
    constexpr double kDay = 86400;
    double seconds = 0;
    KVF_RETURN_IF_ERROR(parse_number(value, "a number of seconds", &seconds));
    if (!(seconds >= 0.001 && seconds <= kDay)) return bad_value(value, "between 0.001 and 86400 seconds");
    options.*member = milliseconds(std::llround(seconds * 1000));
    return Status();
  };
}

const std::map<std::string, Setter, std::less<>>& setters() {
  static const std::map<std::string, Setter, std::less<>> table{
      {"bind", text_of(&EngineOptions::bind)},
      {"advertise", text_of(&EngineOptions::advertise)},
      {"transports", list_of(&EngineOptions::transports)},
      {"rails", list_of(&EngineOptions::rails)},
      {"device", list_of(&EngineOptions::device)},
      {"numa_aware", flag_of(&EngineOptions::numa_aware)},
      {"preferred_numa_node", number_of(&EngineOptions::preferred_numa_node)},
      {"allow_fallback", flag_of(&EngineOptions::allow_fallback)},
      {"cluster_secret", text_of(&EngineOptions::cluster_secret)},
      {"tls", flag_of(&EngineOptions::tls)},
      {"tls_cert_file", text_of(&EngineOptions::tls_cert_file)},
      {"tls_key_file", text_of(&EngineOptions::tls_key_file)},
      {"tls_ca_file", text_of(&EngineOptions::tls_ca_file)},
      {"tcp_streams", number_of(&EngineOptions::tcp_streams)},
      {"shm_lanes", number_of(&EngineOptions::shm_lanes)},
      {"slice_bytes", number_of(&EngineOptions::slice_bytes)},
      {"max_connections", number_of(&EngineOptions::max_connections)},
      {"checksum", flag_of(&EngineOptions::checksum)},
      {"io_uring", flag_of(&EngineOptions::io_uring)},
      {"advise_huge_pages", flag_of(&EngineOptions::advise_huge_pages)},
      {"connect_timeout_s", seconds_of(&EngineOptions::connect_timeout)},
      {"transfer_timeout_s", seconds_of(&EngineOptions::transfer_timeout)},
      {"link_timeout_s", seconds_of(&EngineOptions::link_timeout)},
      {"idle_probe_s", seconds_of(&EngineOptions::idle_probe)},
      {"fault_plan", text_of(&EngineOptions::fault_plan)},
  };
  return table;
}

Status set_option(EngineOptions& options, std::string_view name, std::string_view value) {
  const auto setter = setters().find(name);
  if (setter != setters().end()) return setter->second(options, value).with_context("option " + std::string(name));
  std::string known;
  for (const auto& entry : setters()) known += (known.empty() ? "" : ", ") + entry.first;
  return {Code::kNotFound, "there is no option '" + std::string(name) + "'; there are " + known};
}

}  // namespace
}  // namespace kvferry::c_api

using namespace kvferry::c_api;

extern "C" {

kvf_options* kvf_options_new(void) { return new (std::nothrow) kvf_options; }

kvf_code kvf_options_set(kvf_options* options, const char* name, const char* value) {
  if (any_missing(options, name, value)) return missing_argument("kvf_options_set");
  return guarded([&] { return report(set_option(options->value, name, value)); });
}

void kvf_options_free(kvf_options* options) { delete options; }

}  // extern "C"
