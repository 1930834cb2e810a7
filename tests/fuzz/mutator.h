// Inputs for a fuzzer: good ones with a few edits. Edits know bytes, numbers of any width and
// order, decimal digits and the words of the format; fuzz_target.h's repair() puts lengths right
// behind them. The same seed gives the same inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/fuzz_target.h"

namespace flotilla::fuzz {

class Mutator {
 public:
  // `good` is not empty.
  Mutator(std::vector<Bytes> good, std::vector<std::string> words, uint64_t seed);

  Bytes next();
  // An input that the reader took: later ones may begin with it.
  void keep(const Bytes& input);

 private:
  void edit(Bytes& input);
  void change_bits(Bytes& input);
  void change_number(Bytes& input);
  void change_digits(Bytes& input);
  void insert(Bytes& input);
  void erase(Bytes& input);
  void repeat(Bytes& input);
  void splice(Bytes& input);

  // 0 to count - 1; 0 when there is none.
  size_t pick(size_t count) { return count == 0 ? 0 : random_() % count; }
  const Bytes& pick_source();
  uint64_t pick_number();

  size_t good_;  // the first of sources_, which stay
  std::vector<Bytes> sources_;
  size_t longest_kept_ = 0;
  size_t oldest_ = 0;  // the next of the others to be replaced
  std::vector<std::string> words_;
  Random random_;
};

}  // namespace flotilla::fuzz
