#pragma once

#include <filesystem>
#include <string>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/simulate.hpp>

namespace annulus::planner {

/// Throws Error when the timeline would have more spans than a browser shows, before it is simulated.
void check_html_size(const plan::Plan& plan);

/// Writes a page that needs nothing else: the numbers, a timeline of ranks and links (timeline.hpp), a
/// table by rank; atomically. `rates`: whose rates it is simulated by. Throws Error as check_html_size does.
void write_html(const std::filesystem::path& path, const plan::Plan& plan,
                const simulate::Simulation& simulation, const std::string& rates);

}  // namespace annulus::planner
