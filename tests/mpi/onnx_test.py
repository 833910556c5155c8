"""checkpoint export --format=onnx, read by OpenCV's dnn, against strata predict.

Cases of real data need STRATA_DATA_DIR and run in the full tier.
"""

import json
import os
import pathlib
import shutil
import tarfile

import numpy as np

import harness

try:
    import cv2
except ImportError:
    cv2 = None

JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs"
NEAR = 1e-5


class OnnxTest(harness.StrataTest):
    def setUp(self):
        if cv2 is None:
            self.skipTest("python3 has no cv2 (python3-opencv)")

    def export(self, run, code=harness.DONE):
        shutil.rmtree(self.directory / "onnx", ignore_errors=True)
        return self.alone("checkpoint", "export", run, "--format=onnx", "--output=onnx", expect=code)

    def read(self, inputs):
        """What OpenCV's reading of the exported graph gives for samples as a data set stores them."""
        net = cv2.dnn.readNetFromONNX(str(self.directory / "onnx" / "model.onnx"))
        given = []
        for start in range(0, len(inputs), 100):
            net.setInput(np.ascontiguousarray(inputs[start:start + 100], dtype=np.float32))
            given.append(np.array(net.forward()))
        return np.concatenate(given)

    def assert_same(self, run, inputs):
        self.export(run)
        np.save(self.directory / "new.npy", inputs)
        self.alone("predict", run, "--files=new.npy", "--output=expected.npy", expect=harness.DONE)
        expected = np.load(self.directory / "expected.npy")
        scale = np.maximum(1, np.abs(expected))
        self.assertLess(np.max(np.abs(self.read(inputs) - expected) / scale), NEAR)

    def train_on(self, name, inputs, targets, layers, *settings, **data):
        self.import_arrays(name, inputs, targets, f"{len(inputs) - 20},20")
        data = {"train": f"{name}/train.h5", "test": f"{name}/test.h5", **data}
        config = self.write_config(f"{name}.ini", harness.config_text(
            layers, data=data, batch={"global": 20, "micro": 10}, train={"steps": 8},
            optimizer={"kind": "adam", "learning_rate": 0.01}))
        self.train(config, (1, 1), name, *settings)


class Onnx(OnnxTest):
    def test_values(self):
        random = np.random.default_rng(2)
        inputs = (3 + 2 * random.normal(size=(120, 5))).astype(np.float32)
        self.train_on("values", inputs, 1e5 * np.stack([2 + inputs.sum(1), inputs[:, 0]], 1),
                      ["dense 7 relu", "gelu", "gelu_erf", "dense 6 bias=off", "tanh", "dropout 0.2", "sigmoid", "batch_norm", "dense 2"],
                      normalise="standard")
        self.assert_same("values", inputs[:33])

    def test_images(self):
        random = np.random.default_rng(3)
        images = random.integers(0, 256, (120, 3, 9, 12)).astype(np.uint8)
        layers = ["zero_pad 1", "conv 6 3x2 stride=2x1 padding=same relu", "batch_norm relu",
                  "residual name=r", "conv 8 3 padding=1 bias=off", "batch_norm", "shortcut", "zero_channels 8", "end relu",
                  "residual name=s", "conv 8 3 padding=2 dilation=2 groups=4", "end",
                  "max_pool 2", "avg_pool 2 stride=1 padding=1", "flatten", "dense 4"]
        for name, layers, normalise in (("whole", layers, "standard"), ("mean", layers[:-2] + ["global_avg_pool", "dense 4"], "unit")):
            self.train_on(name, images, random.integers(0, 4, 120), layers, normalise=normalise)
            self.assert_same(name, images[:25])

    def test_what_it_cannot_hold(self):
        random = np.random.default_rng(4)
        labels = random.integers(0, 3, 60)
        rows = random.normal(size=(60, 4, 6)).astype(np.float32)
        self.train_on("rows", rows, labels, ["dense 5 name=wide", "flatten", "dense 3"])
        self.assert_refused(self.export("rows", harness.USAGE), harness.USAGE, "layer wide", "4 x 6", "vectors")
        self.train_on("norm", rows, labels, ["flatten", "layer_norm", "dense 3"])
        self.assert_refused(self.export("norm", harness.USAGE), harness.USAGE, '"layer_norm"', "batch_norm", "--format=safetensors")
        for option, word in (("--dtype=float16", "float32"), ("--adapters=apart", "adapters"), ("--check-logits", "--format=onnx")):
            self.assert_refused(self.alone("checkpoint", "export", "rows", "--format=onnx", "--output=no", option),
                                harness.USAGE, word)
        self.assertFalse((self.directory / "no").exists())


class Real(OnnxTest):
    """MNIST and CIFAR-10, with the networks of jobs/."""

    def data_of(self, pattern):
        found = sorted(pathlib.Path(os.environ.get("STRATA_DATA_DIR", "/nowhere")).rglob(pattern))
        if not found:
            self.skipTest(f"STRATA_DATA_DIR has no {pattern}")
        return found[0]

    def import_mnist(self):
        images = self.data_of("t10k-images-idx3-ubyte*")
        self.import_data("--format=idx", f"--images={images}", f"--labels={self.data_of('t10k-labels-idx1-ubyte*')}",
                         "--split=8000,2000", "--order=file", "--output=data/mnist")
        import gzip
        pixels = np.frombuffer((gzip.open if images.suffix == ".gz" else open)(images, "rb").read(), np.uint8, offset=16)
        return pixels.reshape(-1, 1, 28, 28)

    def test_mnist(self):
        digits = self.import_mnist()
        for job in ("mnist-mlp", "mnist-lenet"):
            self.train(JOBS / f"{job}.ini", (1, 1), job, "--parallel.pipeline=1", "--train.epochs=1", "--run.threads=2", limit=500)
            self.assert_same(job, digits[8000:9000])

    def test_cifar(self):
        with tarfile.open(self.data_of("cifar10-jpg.tar.xz")) as archive:
            archive.extractall(self.directory / "cifar", [member for member in archive if member.name.endswith(("0.jpg", "5.jpg"))])
        root = next(path.parent for path in (self.directory / "cifar").rglob("train"))
        self.import_data("--format=images", f"--files={root / 'train'}", "--split=2000", "--output=data/cifar10")
        self.train(JOBS / "cifar10-cnn.ini", (1, 1), "cifar", "--data.test=", "--train.epochs=0", "--train.steps=20",
                   "--train.evaluate_every=0", "--run.threads=2", limit=900)
        images = np.stack([cv2.imread(str(path))[:, :, ::-1].transpose(2, 0, 1)
                           for path in sorted((root / "test").rglob("*.jpg"))[:200]])
        self.assert_same("cifar", images)


if __name__ == "__main__":
    harness.main()
