#!/usr/bin/env python3
"""Makes manual pages, completion for bash and a page of the site out of what programs say of themselves (--help).

usage: manuals.py OUT LAUNCHER PROGRAM...      OUT/man/man1/NAME.1 and OUT/completions/NAME for each; LAUNCHER is bin/annulus
       manuals.py --page FILE PROGRAM...       one page of Markdown (docs/options.md) with the options of all
       manuals.py --compare FILE PROGRAM...    exit status 1, and the first line that differs, where FILE is not that page
"""
import itertools
import pathlib
import re
import subprocess
import sys

HEADING = re.compile(r"^(\S.*):$")
ITEM = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
OF_ALL = ("-h,--help", "--version")  # options of all programs, which the page has once


class Help:
    """What `--help` of a program or of one of its commands says: description, usage, and sections of (term, text)."""

    def __init__(self, text):
        before, _, rest = text.partition("Usage: ")
        self.description = before.strip()
        self.usage, _, rest = rest.partition("\n")
        self.sections, self.closing, section = [], [], None
        for line in rest.splitlines():
            heading, item = HEADING.match(line), ITEM.match(line)
            if heading:
                section = (heading[1], [])
                self.sections.append(section)
            elif section and line.startswith(" " * 10):
                section[1][-1][1] = (section[1][-1][1] + " " + line.strip()).strip()
            elif section and item:
                section[1].append([item[1], item[2] or ""])
            elif line.strip():
                self.closing.append(line.strip())

    def is_examples(self, title):
        return title.startswith("Example")

    def words(self):
        """Options, and for those with named values the values: {"--bound": ["low", "usual"]}."""
        found = {}
        for title, items in self.sections:
            for term, _ in [] if self.is_examples(title) else items:
                values = re.search(r":\{([^}]*)\}", term)
                for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", term.split("Needs:")[0].split("Excludes:")[0]):
                    found[option] = values[1].split(",") if values else []
        return found

    def commands(self):
        return [term.split()[0] for title, items in self.sections if title == "Subcommands" for term, _ in items]


def ask(program, *words):
    return Help(subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout)


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.splitlines())


def body(told, heading):
    lines = []
    for title, items in told.sections:
        lines.append(f'{heading} "{roff(title)}"')
        for term, text in items:
            if told.is_examples(title):
                lines += [".nf", roff(" ".join(filter(None, [term, text]))), ".fi"]
            else:
                lines += [".TP", f"\\fB{roff(term)}\\fR", roff(text) or "\\&"]
    for line in told.closing:
        lines += [".PP", roff(line)]
    return lines


def manual(name, version, told, commands):
    short = re.split(r"(?<=[^.])[.:](?: |$)", told.description.replace("\n", " "))[0]
    lines = [f'.TH {name.upper()} 1 "" "Annulus {version}"', ".SH NAME", roff(f"{name} - {short}"), ".SH SYNOPSIS", roff(told.usage),
             ".SH DESCRIPTION", roff(told.description)]
    lines += body(told, ".SH")
    for command, of_command in commands.items():
        lines += [f'.SH "COMMAND {roff(command)}"', roff(of_command.usage), ".PP", roff(of_command.description)] + body(of_command, ".SS")
    return "\n".join(lines) + "\n"


def case_of_options(told):
    lines = [f"    {option}) COMPREPLY=($(compgen -W '{' '.join(values)}' -- \"$word\")); return ;;"
             for option, values in told.words().items() if values]
    return ["  case $before in", *lines, "  esac"] if lines else []


def completion(name, told, commands):
    function = "_" + name.replace("-", "_")
    lines = [f"# bash completion for {name}, made of its --help", f"{function}() {{",
             '  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} options', "  COMPREPLY=()"]
    options = " ".join(told.words())
    if commands:
        lines += ["  case ${COMP_WORDS[1]} in"]
        for command, of_command in commands.items():
            lines += [f"    {command}) options='{' '.join(of_command.words())}' ;;"]
        lines += [f"    *) options='{options} {' '.join(commands)}' ;;", "  esac",
                  "  [[ $word == -* || $COMP_CWORD -eq 1 ]] || return 0"]
    else:
        lines += [f"  options='{options}'", *case_of_options(told), "  [[ $word == -* ]] || return 0"]
    lines += ['  COMPREPLY=($(compgen -W "$options" -- "$word"))', "}", f"complete -o default -F {function} {name}"]
    return "\n".join(lines) + "\n"


def launcher(path, out, names):
    """The launcher has no options, and says in a few lines what it does."""
    told = subprocess.run([path, "help"], check=True, capture_output=True, text=True).stdout
    version = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    told = re.sub(r"Installed here: .*\n.*\n", "", told)  # of the folder that this is made in
    page = [f'.TH ANNULUS 1 "" "Annulus {version}"', ".SH NAME", roff("annulus - starts programs of Annulus on MPI ranks"),
            ".SH DESCRIPTION", ".nf", roff(told), ".fi", ".SH SEE ALSO", roff(", ".join(f"{name}(1)" for name in names))]
    (out / "man" / "man1" / "annulus.1").write_text("\n".join(page) + "\n")
    (out / "completions" / "annulus").write_text(f"""# bash completion for annulus
_annulus() {{
  local words="run help --version"
  [ "$COMP_CWORD" -eq 1 ] || words="--preset {' '.join(names)}"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _annulus annulus
""")


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def section(heading, told):
    lines = [heading, "", *told.description.splitlines(), "", "```text", told.usage, "```", ""]
    for title, items in told.sections:
        items = [item for item in items if not item[0].startswith(OF_ALL)]
        if not items:
            continue
        lines += [f"**{title}**", ""]
        if told.is_examples(title):
            lines += ["```text", *(" ".join(filter(None, item)) for item in items), "```", ""]
        else:
            lines += ["| | |", "|---|---|", *(f"| `{cell(term)}` | {cell(text)} |" for term, text in items), ""]
    return lines + [line for closing in told.closing for line in (cell(closing), "")]


def page(programs):
    """The page docs/options.md."""
    lines = ["# Options of all programs", "",
             "This page is for readers who look up an option. It holds what the programs themselves say with `--help`; a test",
             "compares the two. Every program and command also has `--help` (`-h`), every program `--version`. What each program is",
             "for: [programs.md](programs.md).", ""]
    for program in programs:
        name, told = pathlib.Path(program).name, ask(program)
        lines += section(f"## {name}", told)
        for command in told.commands():
            lines += section(f"### {name} {command}", ask(program, command))
    return "\n".join(lines).rstrip() + "\n"


def compare(path, programs):
    """Ends the program with what to do where the page says something else."""
    written, wanted = pathlib.Path(path).read_text().splitlines(), page(programs).splitlines()
    for number, (is_there, should) in enumerate(itertools.zip_longest(written, wanted), 1):
        if is_there != should:
            sys.exit(f"{path}:{number} says '{is_there}', and the programs '{should}': {pathlib.Path(__file__).name} --page {path} PROGRAM... writes it anew")


def main(out, path, programs):
    out = pathlib.Path(out)
    (out / "man" / "man1").mkdir(parents=True, exist_ok=True)
    (out / "completions").mkdir(parents=True, exist_ok=True)
    launcher(path, out, [pathlib.Path(program).name for program in programs])
    for program in programs:
        name = pathlib.Path(program).name
        version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
        told = ask(program)
        commands = {command: ask(program, command) for command in told.commands()}
        (out / "man" / "man1" / f"{name}.1").write_text(manual(name, version, told, commands))
        (out / "completions" / name).write_text(completion(name, told, commands))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    if sys.argv[1] == "--page":
        pathlib.Path(sys.argv[2]).write_text(page(sys.argv[3:]))
    elif sys.argv[1] == "--compare":
        compare(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
