#!/usr/bin/env python3
"""Packs text into token shards with any tokenizer.json: annulus-tokens pack, for which this script encodes texts with the
package tokenizers. Inputs, options, messages and shards are those of annulus-tokens pack (docs/formats/token-shards.md);
run again, it goes on where it stopped. docs/models.md has an example. With --make it is annulus-eval make for which it encodes."""
import argparse, array, json, os, pathlib, shutil, signal, socket, struct, subprocess, sys


def fail(text):
    sys.exit(f"pack_tokenizer_json.py: {text}")


class Parser(argparse.ArgumentParser):
    """One whose help is either written or an error: argparse itself passes over what cannot be written."""

    def _print_message(self, message, file=None):
        if file is sys.stderr: return super()._print_message(message, file)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has seen enough ends this in silence
        try:
            sys.stdout.write(message)
            sys.stdout.flush()
        except (OSError, AttributeError) as error:
            reason = getattr(error, "strerror", None) or "it is closed"
            sys.stdout = None  # Python would write once more when it ends
            fail(f"standard output could not be written ({reason}): give it another place")


def arguments():
    parser = Parser(prog="pack_tokenizer_json.py", description=__doc__)
    parser.add_argument("tokenizer", metavar="TOKENIZER_JSON", help="the tokenizer's file; shards carry it")
    parser.add_argument("end", metavar="END_OF_DOCUMENT", help="the token that closes each document, like '<|endoftext|>'")
    parser.add_argument("out", metavar="OUT", help="folder of the shards")
    parser.add_argument("inputs", metavar="FILE", nargs="*", help="files, folders and JSON lines, as of annulus-tokens pack")
    parser.add_argument("--bos", default="auto", metavar="auto|none|TOKEN",
                        help="the token in front of each document (default: auto, what the tokenizer puts in front of a text; the "
                             "script prints what that is)")
    parser.add_argument("--special-tokens", choices=("text", "token"), default="text",
                        help="text that spells a special token, like <|endoftext|>, is encoded as any other text, or becomes that "
                             "token (default: text)")
    for option in "--shard-tokens", "--extensions", "--bad-lines", "--chat-template":
        parser.add_argument(option, help="as of annulus-tokens pack")
    parser.add_argument("--processes", type=int, default=0, metavar="N",
                        help="processes that encode at the same time (default: 0, one for each core); shards do not depend on it")
    parser.add_argument("--follow-links", action="store_true", help="as of annulus-tokens pack")
    parser.add_argument("--make", nargs=argparse.REMAINDER, metavar="...",
                        help="make samples in OUT in place of packing files; what follows are arguments of annulus-eval make")
    options = parser.parse_intermixed_args()
    if (options.make is None) != bool(options.inputs): parser.error("give FILE…, or --make with arguments of annulus-eval make")
    return options


def program(name):
    """The program of PATH, else the newest one that was built in this clone."""
    built = pathlib.Path(__file__).resolve().parents[2].glob(f"build/*/bin/{name}")
    return (shutil.which(name) or max(map(str, built), key=os.path.getmtime, default=None) or
            fail(f"{name} is neither in PATH nor built: ./annulus build, or add the folder that has it to PATH"))


class Encoder:
    """Encodes the text of a document: what stands in front of it, and its ids."""

    def __init__(self, options):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            fail(f"the package tokenizers cannot be used ({error}): pip install tokenizers")
        try:
            if os.path.exists(options.tokenizer) and not os.path.isfile(options.tokenizer):
                fail(f"'{options.tokenizer}' is no regular file (a folder, a pipe or a device): give a tokenizer.json")
            text = pathlib.Path(options.tokenizer).read_bytes().decode()
            settings, self.tokenizer = json.loads(text), Tokenizer.from_str(text)
        except OSError as error:
            fail(f"cannot read '{options.tokenizer}': {error.strerror}")
        except Exception as error:  # the package raises no other type
            fail(f"'{options.tokenizer}' is no tokenizer.json that the package tokenizers reads: {error}")
        self.tokenizer.no_truncation(), self.tokenizer.no_padding()
        self.vocabulary = max(self.tokenizer.get_vocab().values()) + 1
        self.end = self.id_of(options.end, "END_OF_DOCUMENT")
        self.control = {}
        if options.special_tokens == "text":
            if not hasattr(self.tokenizer, "encode_special_tokens"):
                fail("this version of the package tokenizers takes text for special tokens: update it (0.15.2 or later), or choose "
                     "--special-tokens token")
            self.tokenizer.encode_special_tokens = True
            model = settings.get("model") or {}
            unknown = model.get("unk_token")  # text may have it
            if model.get("unk_id") is not None: unknown = model["vocab"][model["unk_id"]][0]
            self.control = {t["id"]: t["content"] for t in settings.get("added_tokens") or []
                            if t.get("special") and t["content"] != unknown}
        self.front = self.front_of(options.bos)
        self.settings = f"bos {self.front}, special tokens as {options.special_tokens}"

    def id_of(self, token, what):
        number = self.tokenizer.token_to_id(token)
        return number if number is not None else fail(f"the tokenizer has no token '{token}': name another {what}")

    def front_of(self, bos):
        if bos == "none": return []
        if bos != "auto": return [self.id_of(bos, "--bos, or none")]
        bare, full = self.ids("a"), self.tokenizer.encode("a").ids
        front = next((full[:i] for i in range(len(full)) if full[i:i + len(bare)] == bare), [])
        names = " ".join(f"'{self.tokenizer.id_to_token(i)}' ({i})" for i in front)
        print(f"documents start with {names}, as the tokenizer has it: --bos none leaves that out" if front else
              "documents start with their text, as the tokenizer has it: --bos TOKEN puts a token in front", file=sys.stderr)
        return front

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def __call__(self, text):
        ids = self.ids(text)
        if not self.control.keys().isdisjoint(ids):
            name = next(self.control[i] for i in ids if i in self.control)
            raise ValueError(f"the text spells '{name}', which this tokenizer cannot encode as text: take it out of the text, or "
                             "choose --special-tokens token")
        return array.array("I", self.front + ids)


def serve(stream, encode):
    """Answers with the ids of texts (include/annulus/training/data/tokenizer.hpp, make_piped_tokenizer) until the other end closes."""
    while size := stream.read(8):
        text = stream.read(*struct.unpack("<Q", size)).decode()
        try:
            failed, answer = 0, encode(text)
        except Exception as error:
            failed, answer = 1, str(error).encode()[:1000]
        stream.write(struct.pack("<QQ", failed, len(answer)) + bytes(answer))
        stream.flush()


def serve_in_process(ours, others, encode):
    """A process that serves at `ours` until the other end closes."""
    child = os.fork()
    if child: return child
    for other in others: other.close()
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the program that it serves
        with ours, ours.makefile("rwb") as stream:
            serve(stream, encode)
        status = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # that has ended, and says why
    finally:
        os._exit(status)


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # of the package, whose threads no fork would have
    options = arguments()
    if options.processes < 0: fail(f"--processes {options.processes}: give a number, or 0 for one for each core")
    encoder = Encoder(options)
    pairs = [socket.socketpair() for _ in range(options.processes or len(os.sched_getaffinity(0)))]
    served = {"sockets": [theirs.fileno() for _, theirs in pairs], "vocabulary": encoder.vocabulary, "end_of_document": encoder.end,
              "settings": encoder.settings}
    command = ["pack"] if options.make is None else ["make", *options.make]
    command += ["--tokenizer", "tokenizer.json", "--model", options.tokenizer, "--served-tokenizer", json.dumps(served), "--out",
                options.out]
    for option in "shard_tokens", "extensions", "bad_lines", "chat_template":
        if getattr(options, option) is not None: command += ["--" + option.replace("_", "-"), getattr(options, option)]
    if options.follow_links: command.append("--follow-links")
    if options.inputs: command += ["--", *options.inputs]
    of = "annulus-tokens" if options.make is None else "annulus-eval"
    ends = [end for pair in pairs for end in pair]
    children = [serve_in_process(ours, [end for end in ends if end is not ours], encoder) for ours, _ in pairs]
    packing = subprocess.Popen([program(of), *command], pass_fds=[theirs.fileno() for _, theirs in pairs])
    for end in ends: end.close()
    packing.wait()
    for child in children: os.waitpid(child, 0)
    sys.exit(packing.returncode if packing.returncode >= 0 else 128 - packing.returncode)


if __name__ == "__main__":
    main()
