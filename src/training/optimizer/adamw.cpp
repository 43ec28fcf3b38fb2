#include "training/optimizer/adamw.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"
#include "training/optimizer/adamw_update.hpp"
#include "training/optimizer/host_adamw.hpp"
#include "training/optimizer/master_weights.hpp"

namespace annulus::optimizer {
namespace {

using annulus::detail::host_memory;
using detail::AdamWChunk;
using detail::AdamWCoefficients;

// Where the updated elements lie.
template <class Exec, class T>
struct UpdateArrays {
  Array1<float, Exec> parameters;
  Array1<const float, Exec> gradients;
  Array1<float, Exec> first_moment, second_moment;
  Array1<T, Exec> weights;  // without elements: nobody wants them
};

// Elements [i, i + width).
template <int width, class Exec, class T>
KOKKOS_FORCEINLINE_FUNCTION void update_pack(const AdamWCoefficients& by, float keep,
                                             const UpdateArrays<Exec, T>& to, std::int64_t i) {
  auto parameters = load<width>(&to.parameters(i)), first = load<width>(&to.first_moment(i)),
       second = load<width>(&to.second_moment(i));
  const auto gradients = load<width>(&to.gradients(i));
  for (int j = 0; j < width; ++j)
    detail::adamw_update(by, keep, gradients[j], parameters[j], first[j], second[j]);
  store(&to.first_moment(i), first);
  store(&to.second_moment(i), second);
  store(&to.parameters(i), parameters);
  if (to.weights.extent(0) != 0) store(&to.weights(i), parameters);
}

template <int width, class Exec, class T>
void update_chunks(const Exec& exec, const AdamWCoefficients& by,
                   const Array1<const AdamWChunk, Exec>& chunks, const UpdateArrays<Exec, T>& to) {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  Kokkos::parallel_for(
      "annulus::optimizer::adamw", Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(chunks.extent(0)), 128),
      KOKKOS_LAMBDA(const Member& team) {
        const AdamWChunk chunk = chunks(team.league_rank());
        const float keep = chunk.decay ? by.keep : 1.0f;
        // Packs start at multiples of their width, ranges of parameters may start anywhere.
        const std::int64_t begin = Kokkos::min(round_up(chunk.begin, width), chunk.end);
        const std::int64_t end = Kokkos::max(begin, chunk.end / width * width);
        const int rank = team.team_rank(), size = team.team_size();
        for (std::int64_t i = chunk.begin + rank; i < begin; i += size) update_pack<1>(by, keep, to, i);
        for (std::int64_t i = begin + rank * width; i < end; i += size * width)
          update_pack<width>(by, keep, to, i);
        for (std::int64_t i = end + rank; i < chunk.end; i += size) update_pack<1>(by, keep, to, i);
      });
}

template <class Exec, class T>
void update(const Exec& exec, const AdamWCoefficients& by, const Array1<const AdamWChunk, Exec>& chunks,
            const UpdateArrays<Exec, T>& to) {
  if constexpr (host_memory<Exec>) {
    detail::update_on_host<Exec, T>(exec, by, std::span(chunks.data(), chunks.extent(0)),
                                    {.begin = 0,
                                     .end = static_cast<std::int64_t>(to.parameters.extent(0)),
                                     .parameters = to.parameters.data(),
                                     .first_moment = to.first_moment.data(),
                                     .second_moment = to.second_moment.data(),
                                     .gradients = to.gradients.data(),
                                     .weights = to.weights.data()});
  } else {
    // The width of float, of which most arrays are: that of T would leave gaps between the lanes of a warp.
    with_pack_width<Exec, float>(
        in_packs<Exec, float>(pack_width<Exec, float>, to.parameters, to.gradients, to.first_moment,
                              to.second_moment, to.weights),
        [&](auto width) { update_chunks<decltype(width)::value>(exec, by, chunks, to); });
  }
}

}  // namespace

std::vector<ParameterRange> ranges_of_shard(std::span<const ParameterRange> ranges, std::int64_t begin,
                                            std::int64_t end) {
  std::vector<ParameterRange> inside;
  for (const ParameterRange& range : ranges) {
    const std::int64_t first = std::max(range.begin, begin), last = std::min(range.end, end);
    if (first < last) inside.push_back({first - begin, last - begin, range.decay, range.updated});
  }
  return inside;
}

template <class Exec>
AdamW<Exec>::AdamW(const Exec& exec, const AdamWOptions& options, std::int64_t size,
                   std::span<const ParameterRange> ranges)
    : options_(options) {
  options_.validate();
  const std::vector<AdamWChunk> chunks = detail::adamw_chunks(size, ranges);
  const ArrayTable arrays = master_arrays({}, size, DType::f32);
  first_moment_ = allocate<float>(exec, arrays[1]);
  second_moment_ = allocate<float>(exec, arrays[2]);
  for (const auto& moment : {*first_moment_, *second_moment_}) Kokkos::deep_copy(exec, moment, 0.0f);
  chunks_ = Owned<Array1<AdamWChunk, Exec>>::uninitialized(exec, MemoryCategory::optimizer,
                                                           "annulus::optimizer::chunks", chunks.size());
  const Kokkos::View<const AdamWChunk*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> on_host(chunks.data(),
                                                                                            chunks.size());
  Kokkos::deep_copy(exec, *chunks_, on_host);
  exec.fence("annulus::optimizer::AdamW: the list of chunks on the host goes out of scope");
}

template <class Exec>
template <class T>
void AdamW<Exec>::step(const Exec& exec, const Array1<float, Exec>& parameters,
                       const Array1<const float, Exec>& gradients, double learning_rate, float gradient_scale,
                       const Array1<T, Exec>& weights) {
  const Region region("annulus::optimizer::adamw");
  const std::size_t size = first_moment_.view().extent(0);
  require(parameters.extent(0) == size && gradients.extent(0) == size,
          "AdamW: {} parameters '{}' and {} gradients '{}' do not fit moments of {} elements",
          parameters.extent(0), parameters.label(), gradients.extent(0), gradients.label(), size);
  require(weights.extent(0) == size || weights.extent(0) == 0,
          "AdamW: {} weights '{}' do not fit {} parameters '{}'", weights.extent(0), weights.label(), size,
          parameters.label());
  ++steps_;
  const bool separate = static_cast<const void*>(weights.data()) != parameters.data();
  update<Exec, T>(
      exec, detail::adamw_coefficients(options_, steps_, learning_rate, gradient_scale), *chunks_,
      {parameters, gradients, *first_moment_, *second_moment_, separate ? weights : Array1<T, Exec>()});
}

#define ANNULUS_INSTANTIATE(Exec)                                                                            \
  template class AdamW<Exec>;                                                                                \
  template void AdamW<Exec>::step(const Exec&, const Array1<float, Exec>&, const Array1<const float, Exec>&, \
                                  double, float, const Array1<float, Exec>&);                                \
  template void AdamW<Exec>::step(const Exec&, const Array1<float, Exec>&, const Array1<const float, Exec>&, \
                                  double, float, const Array1<bfloat16, Exec>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::optimizer
