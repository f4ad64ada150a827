// As much of JSON as the published test vectors need: objects, arrays, whole numbers, and strings whose only escapes
// are of a quote and a backslash. Whatever else comes up ends the test.
#pragma once

#include <cctype>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry {

struct Json {
  std::string text;
  std::int64_t number = 0;
  std::vector<Json> items;
  std::map<std::string, Json> members;

  const Json& at(const std::string& name) const { return members.at(name); }
  bool has(const std::string& name) const { return members.contains(name); }
};

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : rest_(text) {}

  Json value() {
    Json out;
    const char first = peek();
    if (first == '{') {
      list('{', '}', [&] {
        std::string name = string();
        expect(':');
        out.members.emplace(std::move(name), value());
      });
    } else if (first == '[') {
      list('[', ']', [&] { out.items.push_back(value()); });
    } else if (first == '"') {
      out.text = string();
    } else {
      out.number = number();
    }
    return out;
  }

 private:
  char peek() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front())) != 0) rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_.front();
  }
  void expect(char wanted) {
    if (peek() != wanted) throw std::runtime_error(std::string("JSON: no '") + wanted + "'");
    rest_.remove_prefix(1);
  }
  template <typename Item>
  void list(char open, char close, Item&& item) {
    expect(open);
    while (peek() != close) {
      item();
      if (peek() != close) expect(',');
    }
    expect(close);
  }
  std::string string() {
    expect('"');
    std::string out;
    while (rest_.at(0) != '"') {
      if (rest_[0] == '\\') rest_.remove_prefix(1);
      out += rest_.at(0);
      rest_.remove_prefix(1);
    }
    expect('"');
    return out;
  }
  std::int64_t number() {
    std::string digits;
    while (peek() == '-' || std::isdigit(static_cast<unsigned char>(peek())) != 0) {
      digits += rest_.front();
      rest_.remove_prefix(1);
    }
    return std::stoll(digits);
  }
  std::string_view rest_;
};

inline Json read_json(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string whole = text.str();
  return JsonParser(whole).value();
}

}  // namespace kvferry
