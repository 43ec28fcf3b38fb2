#!/usr/bin/env python3
"""Packs text into token shards with any tokenizer.json: annulus-tokens pack, for which this script encodes texts with the
package tokenizers and reads Parquet files with the package pyarrow. Inputs, options, messages and shards are those of annulus-tokens pack (docs/formats/token-shards.md);
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
    parser.add_argument("inputs", metavar="FILE", nargs="*", help="files, folders and JSON lines, as of annulus-tokens pack, and Parquet files")
    parser.add_argument("--bos", default="auto", metavar="auto|none|TOKEN",
                        help="the token in front of each document (default: auto, what the tokenizer puts in front of a text; the "
                             "script prints what that is)")
    parser.add_argument("--special-tokens", choices=("text", "token"), default="text",
                        help="text that spells a special token, like <|endoftext|>, is encoded as any other text, or becomes that "
                             "token (default: text)")
    for option in "--shard-tokens", "--extensions", "--bad-lines", "--chat-template":
        parser.add_argument(option, help="as of annulus-tokens pack")
    parser.add_argument("--column", metavar="NAME",
                        help="the column of Parquet files that has the texts or, with --chat-template, the conversations (default: text, "
                             "or the template's key of messages)")
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
        if options.column is not None: self.settings += f", column {options.column}"

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


class ParquetReader:
    """Makes JSON lines of Parquet files: a record for each row, with a text or a conversation."""

    PIECE = 1 << 22  # bytes of a column that are read at once, more or less

    def __init__(self, options):
        template = {}
        if options.chat_template:
            try:
                template = json.loads(pathlib.Path(options.chat_template).read_bytes())
            except (OSError, ValueError):
                pass  # annulus-tokens reads it first, and says what is wrong
        names = [template.get(key, key) for key in ("messages", "role", "content")] if isinstance(template, dict) else []
        self.keys = names[1:] if options.chat_template else None
        self.key = names[0] if self.keys else "text"
        self.column = self.key if options.column is None else options.column

    def __call__(self, path):
        """Yields pieces of the lines, and how many bytes of the file are unread."""
        try:
            import pyarrow, pyarrow.parquet
        except ImportError as error:
            raise ValueError(f"Parquet files are read by the package pyarrow, which cannot be used ({error}): pip install pyarrow")
        with pyarrow.parquet.ParquetFile(path) as file:
            self.require_column(pyarrow, file.schema_arrow)
            data, done, size = file.metadata, 0, os.path.getsize(path)
            for group in range(data.num_row_groups):
                rows, bytes_of_column = data.row_group(group).num_rows, self.bytes_of(data.row_group(group))
                # A dictionary's values are short in the file and long in a batch: hence never more than 1024.
                batch = max(1, min(1024, self.PIECE * rows // max(bytes_of_column, 1)))
                for values in file.iter_batches(batch, [group], [self.column], use_threads=False):
                    done += len(values)
                    lines = "".join(map(self.line, values.column(0).to_pylist())).encode()
                    for at in range(0, len(lines), 1 << 24):
                        yield lines[at:at + (1 << 24)], size * (data.num_rows - done) // data.num_rows

    def require_column(self, pyarrow, schema):
        is_a, names = pyarrow.types, schema.names
        if self.column not in names:
            raise ValueError(f"it has no column '{self.column}', but {', '.join(names)}: name one with --column")
        held = found = schema.field(self.column).type
        if self.keys:
            good = (is_a.is_list(held) or is_a.is_large_list(held) or is_a.is_fixed_size_list(held)) and is_a.is_struct(held.value_type)
            missing = [key for key in self.keys if good and held.value_type.get_field_index(key) < 0]
            good, wanted = good and not missing, f"no lists of messages with {' and '.join(self.keys)}"
        else:
            if is_a.is_dictionary(held): held = held.value_type
            good = is_a.is_string(held) or is_a.is_large_string(held) or getattr(is_a, "is_string_view", lambda _: False)(held)
            wanted = "no strings"
        if not good: raise ValueError(f"its column '{self.column}' holds {found} and {wanted}: name another with --column")

    def bytes_of(self, group):
        columns = map(group.column, range(group.num_columns))
        return sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == self.column)

    def line(self, value):
        if self.keys and value is not None:
            value = [m and {key: m[key] for key in self.keys} for m in value]
        return json.dumps({self.key: value}, ensure_ascii=False) + "\n"


def serve_lines(stream, read):
    """Answers with JSON lines of Parquet files (include/annulus/training/data/packer.hpp, parquet_reader) until the other end closes."""
    path, pieces = "", iter(())
    while size := stream.read(8):
        size, = struct.unpack("<Q", size)
        if size:
            path = os.fsdecode(stream.read(size))
            pieces = read(path)
            continue
        try:
            failed, (piece, unread) = 0, next(pieces, (b"", 0))
        except Exception as error:
            failed, piece, unread = 1, f"'{path}' cannot be read: {error}".encode(errors="replace")[:1000], 0
        stream.write(struct.pack("<QQQ", failed, unread, len(piece)) + piece)
        stream.flush()


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


def serve_in_process(ours, others, answer):
    """A process that answers at `ours` until the other end closes."""
    child = os.fork()
    if child: return child
    for other in others: other.close()
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the program that it serves
        with ours, ours.makefile("rwb") as stream:
            answer(stream)
        status = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # that has ended, and says why
    finally:
        os._exit(status)


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # of the package, whose threads no fork would have
    options = arguments()
    if options.processes < 0: fail(f"--processes {options.processes}: give a number, or 0 for one for each core")
    encoder, parquet = Encoder(options), ParquetReader(options)
    answers = [lambda stream: serve_lines(stream, parquet)]
    answers += [lambda stream: serve(stream, encoder)] * (options.processes or len(os.sched_getaffinity(0)))
    pairs = [socket.socketpair() for _ in answers]
    parquet_reader, *sockets = [theirs.fileno() for _, theirs in pairs]
    served = {"sockets": sockets, "vocabulary": encoder.vocabulary, "end_of_document": encoder.end, "settings": encoder.settings,
              "parquet_reader": parquet_reader}
    command = ["pack"] if options.make is None else ["make", *options.make]
    command += ["--tokenizer", "tokenizer.json", "--model", options.tokenizer, "--served-tokenizer", json.dumps(served), "--out",
                options.out]
    for option in "shard_tokens", "extensions", "bad_lines", "chat_template":
        if getattr(options, option) is not None: command += ["--" + option.replace("_", "-"), getattr(options, option)]
    if options.follow_links: command.append("--follow-links")
    if options.inputs: command += ["--", *options.inputs]
    of = "annulus-tokens" if options.make is None else "annulus-eval"
    ends = [end for pair in pairs for end in pair]
    children = [serve_in_process(ours, [end for end in ends if end is not ours], answer) for (ours, _), answer in zip(pairs, answers)]
    packing = subprocess.Popen([program(of), *command], pass_fds=[theirs.fileno() for _, theirs in pairs])
    for end in ends: end.close()
    packing.wait()
    for child in children: os.waitpid(child, 0)
    sys.exit(packing.returncode if packing.returncode >= 0 else 128 - packing.returncode)


if __name__ == "__main__":
    main()
