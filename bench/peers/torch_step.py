"""What the PyTorch sides share: options, compiling, the update, timed steps, the line of JSON."""
import contextlib, itertools, json, math, platform, statistics, sys, time

import torch

OUT_OF_MEMORY = 5  # exit code; strata's for a device that failed


def add_options(parser, precisions, batch):
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=precisions, default=precisions[0])
    parser.add_argument("--batch", type=int, default=batch, help="samples of a step")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--warmup", type=int, default=5, help="steps before, compiling included")
    parser.add_argument("--compile", default="default", help="mode of torch.compile, or off",
                        choices=["default", "reduce-overhead", "max-autotune", "off"])


def prepare(options):
    """Seeds, and lets float32 products and convolutions use tf32 where that is the precision."""
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    # Shapes never change: cuDNN may try its algorithms in the first steps.
    torch.backends.cudnn.benchmark = True


def autocast(options):
    """The context of a forward pass."""
    if options.precision == "autocast":
        return torch.autocast(options.device, dtype=torch.bfloat16)
    return contextlib.nullcontext()


class Update:
    """Clipping and an optimizer's step.

    With precision "masters" the model is made bfloat16, and the optimizer updates float32 copies of
    its weights, which are rounded into it."""

    def __init__(self, model, options, make_optimizer, clip_norm):
        """make_optimizer: from a list of weights; clip_norm: of the whole gradient, 0: none."""
        self.copied = options.precision == "masters"
        self.clip_norm = clip_norm
        self.updated = list(model.parameters())
        if self.copied:
            self.updated = [weight.detach().clone().requires_grad_() for weight in self.updated]
            model.to(torch.bfloat16)
        self.computed = list(model.parameters())
        self.optimizer = make_optimizer(self.updated)

    def __call__(self):
        if self.copied:
            for master, weight in zip(self.updated, self.computed):
                master.grad, weight.grad = weight.grad.float(), None
        if self.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.updated, self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.copied:
            with torch.no_grad():
                for master, weight in zip(self.updated, self.computed):
                    weight.copy_(master)


class Clock:
    """Marks on the device's own time line: the host need not wait between two steps."""

    def __init__(self, device):
        self.cuda = device == "cuda"
        self.marks = []

    def mark(self):
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        """Between each mark and the next."""
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in zip(self.marks, self.marks[1:])]
        return [b - a for a, b in zip(self.marks, self.marks[1:])]


def compiled(network, options):
    """The network as it is run, and in words how."""
    if options.compile == "off":
        return network, "off"
    if not hasattr(torch, "compile"):
        return network, "off: PyTorch before 2.0 cannot"
    return torch.compile(network, mode=options.compile), options.compile


def train(network, update, batches, options):
    """Runs the steps on the batches in turn, and gives what the report says of them.

    network: from a batch's tensors to the loss."""
    run, how = compiled(network, options)
    batches = itertools.cycle(batches)

    def step():
        with autocast(options):
            loss = run(*next(batches))
        loss.backward()
        update()
        return loss.detach()

    losses = []
    for _ in range(options.warmup):
        losses.append(step().clone())
    clock = Clock(options.device)
    clock.mark()
    for _ in range(options.steps):
        losses.append(step().clone())  # a CUDA graph writes its loss in the same place again
        clock.mark()
    seconds = statistics.median(clock.seconds())
    losses = [loss.item() for loss in losses]
    return {"precision": options.precision, "compile": how, "batch": options.batch,
            "step_seconds": seconds, "samples_per_second": options.batch / seconds,
            "peak_memory_bytes":
                torch.cuda.max_memory_allocated() if options.device == "cuda" else None,
            "loss": losses[-1] if math.isfinite(losses[-1]) else None,
            "loss_finite": all(map(math.isfinite, losses)), **machine(options.device)}


def machine(device):
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"torch": torch.__version__, "device": name}


def is_out_of_memory(error):
    """Also where a library or the compiler wraps it."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(
        sign in str(error) for sign in ("out of memory", "ALLOC_FAILED"))


def report(measure):
    """Prints what `measure` gives as one line of JSON; exits with 5 where memory is too small."""
    try:
        result = measure()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        print(f"out of memory: {error}", file=sys.stderr)
        sys.exit(OUT_OF_MEMORY)
    print(json.dumps(result))
