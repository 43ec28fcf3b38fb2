#pragma once

#include <memory>
#include <optional>

#include "attention/kernels/hopper/launch/key_sections.hpp"
#include "attention/kernels/hopper/launch/launch.hpp"
#include "attention/kernels/hopper/launch/workspace.hpp"
#include "attention/kernels/hopper/tile/shapes.hpp"
#include "masks.hpp"

namespace annulus::hopper_kernels {

using namespace annulus::attention;
namespace hopper = annulus::attention::hopper;

/// Inputs and results of one block of attention.
template <class T>
class Case {
 public:
  /// `gap`: elements behind each row of head_dim. `soft_cap`: of the scores, or 0.
  Case(const MaskCase& mask, const PositionMap& q_map, const PositionMap& kv_map, int batch, int heads,
       int kv_heads, int head_dim, int gap, unsigned seed, float soft_cap = 0.0f)
      : rows{head_dim, gap},
        v_rows{hopper::v_columns(head_dim), gap},
        mask_(mask),
        q_rows_(q_map.count),
        kv_rows_(kv_map.count),
        q(std::size_t(batch) * heads * q_rows_ * rows.width()),
        d_out(std::size_t(batch) * heads * q_rows_ * v_rows.width()),
        k(std::size_t(batch) * kv_heads * kv_rows_ * rows.width()),
        v(std::size_t(batch) * kv_heads * kv_rows_ * v_rows.width()),
        out(d_out.count()),
        dq(q.count()),
        lse(std::size_t(batch) * heads * q_rows_),
        d(lse.count()),
        dk(k.count()),
        dv(v.count()) {
    unsigned of_array = 0;
    for (const DeviceArray<T>* array : {&q, &k, &v, &d_out}) {
      fill_normal(*array, seed + ++of_array);
      (of_array <= 2 ? rows : v_rows).spoil(*array);
    }
    in_ = {dense<const T>(q.data(), heads, q_rows_, rows.width()),
           dense<const T>(k.data(), kv_heads, kv_rows_, rows.width()),
           dense<const T>(v.data(), kv_heads, kv_rows_, v_rows.width()),
           q_map,
           kv_map,
           mask_.rule(),
           1.0f / std::sqrt(static_cast<float>(head_dim)),
           batch,
           heads,
           kv_heads,
           head_dim,
           soft_cap};
    in_.v_head_dim = v_rows.head_dim;
    in_.kv_listed = mask_.listed_keys();
    classes_ = hopper::dilation_classes(in_.mask, q_map, kv_map);
  }

  bool applies() const { return classes_ && !(classes_->count > 1 && in_.mask.has_blocks()); }
  const gpu::Input<T>& input() const { return in_; }
  gpu::BackwardProblem<T> backward_problem() const {
    return {in_,
            dense<const T>(d_out.data(), in_.heads, q_rows_, v_rows.width()),
            dense<const float>(lse.data(), in_.heads, q_rows_, 1),
            dense<const float>(d.data(), in_.heads, q_rows_, 1),
            dense(dq.data(), in_.heads, q_rows_, rows.width()),
            dense(dk.data(), in_.kv_heads, kv_rows_, rows.width()),
            dense(dv.data(), in_.kv_heads, kv_rows_, v_rows.width())};
  }

  /// (batch, rows, heads, columns of O), as models have it.
  gpu::Rows<T> joined(T* data) const {
    const std::int64_t width = std::int64_t{in_.heads} * in_.v_head_dim;
    return {data, q_rows_ * width, in_.v_head_dim, width};
  }
  /// `sinks`: (heads) or null. `keys`: of a launch; 0: as many as the library gives it.
  void forward(hopper::LaunchOptions options, const gpu::Rows<T>& finished = {}, const T* sinks = nullptr,
               std::int64_t keys = 0) {
    const gpu::ForwardProblem<T> problem{in_, dense(out.data(), in_.heads, q_rows_, v_rows.width()),
                                         dense(lse.data(), in_.heads, q_rows_, 1), finished, sinks};
    void* const memory = workspace(hopper::forward_workspace(in_, *classes_));
    const auto start = [&](const gpu::ForwardProblem<T>& part, bool fresh) {
      options.fresh_out = fresh;
      hopper::with_tiles(part, [&](auto columns, auto form) {
        check(hopper::launch_forward<columns, form, T>(part, *classes_, options, memory, nullptr),
              "start the forward pass");
      });
    };
    hopper::for_each_key_section(problem, options.fresh_out, keys > 0 ? keys : hopper::keys_at_once(in_),
                                 start);
  }
  /// Whether joined(`finished`) is `result`, (batch, heads, rows, columns of O), rounded.
  bool is_rounded(const std::vector<T>& finished, const std::vector<float>& result) const {
    const int head_dim = in_.v_head_dim;
    const gpu::Rows<const float> from = dense(result.data(), in_.heads, q_rows_, head_dim);
    for (int batch = 0; batch < in_.batch; ++batch)
      for (int head = 0; head < in_.heads; ++head)
        for (std::int64_t row = 0; row < q_rows_; ++row)
          for (int i = 0; i < head_dim; ++i) {
            const std::int64_t at = ((batch * q_rows_ + row) * in_.heads + head) * head_dim + i;
            if (finished[static_cast<std::size_t>(at)].bits != T(from.at(batch, head, row)[i]).bits)
              return false;
          }
    return true;
  }
  void backward(const hopper::LaunchOptions& options) {
    hopper::with_tiles(in_, [&](auto columns, auto form) {
      check(hopper::launch_backward<columns, form, T>(
                backward_problem(), *classes_, options,
                workspace(hopper::backward_workspace(in_, *classes_, options)), nullptr),
            "start the backward pass");
    });
  }

  const RowsWithGaps rows, v_rows;  ///< rows of Q and K; rows of V, O and their gradients, of v_columns()

 private:
  MaskOnDevice mask_;
  std::int64_t q_rows_, kv_rows_;
  gpu::Input<T> in_;
  std::optional<hopper::DilationClasses> classes_;
  std::unique_ptr<DeviceArray<unsigned char>> workspace_;

  void* workspace(std::size_t bytes) {
    if (workspace_ == nullptr || workspace_->count() < bytes)
      workspace_ = std::make_unique<DeviceArray<unsigned char>>(bytes);
    return workspace_->data();
  }

 public:
  DeviceArray<T> q, d_out, k, v;
  DeviceArray<float> out, dq, lse, d, dk, dv;  // out and gradients: (batch, heads, rows, width of its rows)
};

}  // namespace annulus::hopper_kernels
