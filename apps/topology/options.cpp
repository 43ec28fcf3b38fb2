#include "topology/options.hpp"

#include <annulus/base/error.hpp>

namespace annulus::topology_app {

void add_options(CLI::App& app, Options& o) {
  const std::string what = "What is looked at", print = "What is done (without any: a readable tree)";
  app.add_option("--xml", o.xml, "nodes as hwloc XML files ([HOST=]FILE, several) instead of this machine")
      ->group(what);
  app.add_option("--from", o.from, "the folder in which --save of every node of the job left its description")
      ->group(what);
  app.add_option("--profile", o.profile, "site profile: what a node has to be (docs/formats/site-profile.md)")
      ->group(what);
  app.add_option(
         "--ranks", o.ranks_file,
         "lines 'RANK HOST' (of --where, or 'srun -l hostname'), - for stdin; else Slurm's variables tell")
      ->group(what);
  app.add_option("--ranks-per-node", o.ranks_per_node,
                 "ranks per node; 0: the job's, else the profile's, else one per GPU")
      ->group(what);
  app.add_option("--switches", o.switches,
                 "a file with the output of 'scontrol show topology' instead of calling it")
      ->group(what);
  app.add_option("--local-rank", o.local_rank,
                 "the rank among those of its node, for --env and --exec; else its launcher tells")
      ->group(what);
  app.add_option("--local-ranks", o.local_ranks, "ranks of its node, likewise")->group(what);

  app.add_option("--output", o.output, "write a cluster file with guessed rates (docs/formats/cluster.md)")
      ->group(print);
  app.add_option("--json", o.json,
                 "write what was found and decided to a file; - for stdout, in place of text")
      ->group(print);
  app.add_option("--save", o.save, "write this node's description into a folder, as HOST.xml")->group(print);
  app.add_flag("--env", o.env, "print what one rank's environment is to be, for a shell")->group(print);
  app.add_flag("--exec", o.execute,
               "set one rank's environment, bind it and start the command that follows --")
      ->group(print);
  app.add_flag("--launch", o.launch, "print what srun or mpirun are to be told, for a shell")->group(print);
  app.add_option("--hostfile", o.hostfile,
                 "with --launch: where to write the ranks' hosts when switches ask for an order")
      ->group(print);
  app.add_option("--nodes", o.nodes, "with --launch: so many of the job's nodes; 0: all")->group(print);
  app.add_flag("--where", o.where, "print the rank and the host of this process, for --ranks")->group(print);
  app.add_flag("--strict", o.strict, "take warnings for errors")->group(print);
  app.add_option("command", o.command, "the program of --exec and its arguments")->group(print);
  app.footer(
      "Examples:\n"
      "  annulus-topology                                 what this machine is made of\n"
      "  annulus-topology --output guess.toml             a cluster file for annulus-plan --cluster\n"
      "  srun annulus-topology --exec -- ./program        each rank bound to its GPU, NICs and cores");
}

void check(const Options& o) {
  const int modes = int{o.env} + int{o.execute} + int{o.launch} + int{o.where} + int{!o.save.empty()};
  require(modes <= 1, "--env, --exec, --launch, --save and --where exclude one another: give one of them");
  require(o.xml.empty() || o.from.empty(), "--xml and --from both say which nodes: give one of them");
  require(!o.execute || !o.command.empty(), "--exec lacks the command to start: write it after --");
  require(o.execute || o.command.empty(), "the argument '{}' belongs to nothing: commands need --exec",
          o.command.empty() ? "" : o.command.front());
  require(!o.execute || (o.xml.empty() && o.from.empty()),
          "--exec binds to this machine: leave out --xml and --from");
  require(o.save.empty() || (o.xml.empty() && o.from.empty()),
          "--save describes this machine: leave out --xml and --from");
  require(o.hostfile.empty() || o.launch, "--hostfile goes with --launch");
  require(o.nodes == 0 || o.launch, "--nodes goes with --launch");
  require(o.nodes >= 0, "--nodes is {}: it must be positive, or 0 for all", o.nodes);
  require(o.ranks_per_node >= 0, "--ranks-per-node is {}: it must be positive, or 0", o.ranks_per_node);
  const bool of_rank = o.local_rank >= 0 || o.local_ranks != 0;
  require(!of_rank || o.env || o.execute, "--local-rank and --local-ranks go with --env and --exec");
  require(!of_rank || (o.local_rank >= 0 && o.local_ranks > o.local_rank),
          "--local-rank {} of --local-ranks {}: give both, the rank from 0 to below their number",
          o.local_rank, o.local_ranks);
}

}  // namespace annulus::topology_app
