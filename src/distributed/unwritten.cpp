#include "distributed/unwritten.hpp"

namespace annulus::distributed {

namespace {

bool same_array(const Block& a, const Block& b) {
  return a.tensor == b.tensor && a.slot == b.slot && a.batch == b.batch && a.width == b.width &&
         a.head_stride == b.head_stride && a.batch_stride == b.batch_stride && a.head_stride > 0;
}

/// Where a block lies in its array.
struct Rectangle {
  std::int64_t head, head_end, row, row_end;

  explicit Rectangle(const Block& b)
      : head(b.offset / b.head_stride),
        head_end(head + b.heads),
        row(b.offset % b.head_stride / b.width),
        row_end(row + b.rows) {}
};

Block cut(const Block& whole, std::int64_t head, std::int64_t head_end, std::int64_t row,
          std::int64_t row_end) {
  Block block = whole;
  block.offset = head * whole.head_stride + row * whole.width;
  block.heads = head_end - head;
  block.rows = row_end - row;
  return block;
}

}  // namespace

bool Unwritten::contains(const Block& whole, const Block& part) {
  if (!same_array(whole, part) || part.elements() == 0) return false;
  const Rectangle a(whole), b(part);
  return a.head <= b.head && b.head_end <= a.head_end && a.row <= b.row && b.row_end <= a.row_end;
}

bool Unwritten::overlap(const Block& a, const Block& b) {
  if (a.tensor != b.tensor || a.slot != b.slot) return false;
  if (!same_array(a, b)) return true;
  const Rectangle x(a), y(b);
  return x.head < y.head_end && y.head < x.head_end && x.row < y.row_end && y.row < x.row_end;
}

std::vector<Block> Unwritten::without(const Block& whole, const Block& part) {
  const Rectangle a(whole), b(part);
  return {cut(whole, a.head, b.head, a.row, a.row_end), cut(whole, b.head_end, a.head_end, a.row, a.row_end),
          cut(whole, b.head, b.head_end, a.row, b.row), cut(whole, b.head, b.head_end, b.row_end, a.row_end)};
}

}  // namespace annulus::distributed
