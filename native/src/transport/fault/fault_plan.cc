#include "transport/fault/fault_plan.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace kvferry {
namespace {

constexpr std::array<std::pair<std::string_view, FaultAction>, 8> kActions{{
    {"delay", FaultAction::kDelay},
    {"hang", FaultAction::kHang},
    {"stuck", FaultAction::kStuck},
    {"late", FaultAction::kLate},
    {"cut", FaultAction::kCut},
    {"short", FaultAction::kShort},
    {"corrupt", FaultAction::kCorrupt},
    {"refuse", FaultAction::kRefuse},
}};

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Cuts "head<mark>tail" into head (left in *text) and the number after the mark; nothing to cut is fine.
bool take_number(std::string_view* text, char mark, std::uint64_t* value) {
  const std::size_t place = text->rfind(mark);
  if (place == std::string_view::npos) return true;
  const auto parsed = number(text->substr(place + 1));
  if (!parsed) return false;
  *value = *parsed;
  *text = text->substr(0, place);
  return true;
}

std::optional<FaultRule> parse_rule(std::string_view text) {
  FaultRule rule;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  rule.transport = text.substr(0, colon);
  std::string_view action = text.substr(colon + 1);
  std::uint64_t delay_ms = 0;
  if (!take_number(&action, 'x', &rule.count)) return std::nullopt;
  if (!take_number(&action, '@', &rule.first) || rule.first == 0) return std::nullopt;
  if (!take_number(&action, '=', &delay_ms)) return std::nullopt;
  rule.delay = milliseconds(delay_ms);
  for (const auto& [name, value] : kActions) {
    if (name != action) continue;
    rule.action = value;
    return rule;
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<FaultRule>> parse_fault_plan(std::string_view text) {
  std::vector<FaultRule> rules;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    const std::string_view part = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (part.empty()) continue;
    auto rule = parse_rule(part);
    if (!rule) return {Code::kInvalidArgument, "fault_plan: cannot read the rule '" + std::string(part) + "'"};
    rules.push_back(*std::move(rule));
  }
  return rules;
}

}  // namespace kvferry
