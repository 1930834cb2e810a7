"""Makes the pictures of tests/io and what the LTX-2 Python reference (commit 400fd31) sees in them.

Usage: PYTHONPATH=<reference>/packages/ltx-core/src:<reference>/packages/ltx-pipelines/src python make_pictures.py
Needs pillow, av, numpy, safetensors. "seen.<file>" is the reference's decode_image(); where it differs on purpose
(16-bit grey, mirrored orientations) it is what image_reader.h states. "crf.<n>" and "crf.odd" are its preprocess().
"""

import struct
import zlib

import numpy as np
import torch
from ltx_pipelines.utils.media_io import decode_image, preprocess
from PIL import Image, ImageOps
from safetensors.torch import save_file

ORIENTATION = 0x0112
seen = {}


def picture(height, width, seed):
    noise = np.random.default_rng(seed).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def keep(image, name, **options):
    image.save(name, **options)
    seen[f"seen.{name}"] = decode_image(name)


def write_png(name, pixels, color_type, extra=b""):
    """A 16-bit PNG; `pixels` uint16 [H, W, C]."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    with open(name, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def exif(orientation):
    block = Image.Exif()
    block[ORIENTATION] = orientation
    return block


color = picture(11, 17, 1)
alpha = picture(11, 17, 2).convert("L")
rgba = color.copy()
rgba.putalpha(alpha)
grey = color.convert("L")
grey_alpha = grey.copy()
grey_alpha.putalpha(alpha)

keep(color, "rgb.png")
keep(picture(1, 1, 3), "one_pixel.png")
keep(grey, "grey.png")
keep(rgba, "rgba.png")
keep(grey_alpha, "grey_alpha.png")
keep(color.quantize(13), "palette.png", transparency=3)
keep(grey.convert("1"), "one_bit.png")
keep(color, "oriented.png", exif=exif(6))
deep = np.random.default_rng(4).integers(0, 65536, (6, 5, 3)).astype(np.uint16)
write_png("rgb16.png", deep, 2)
seen["seen.rgb16.png"] = decode_image("rgb16.png")
write_png("grey16.png", deep[..., :1], 0)
seen["seen.grey16.png"] = (deep[..., :1] >> 8).astype(np.uint8).repeat(3, 2)

keep(color, "color.jpg", quality=95, subsampling=0)
keep(picture(32, 48, 5), "progressive.jpg", quality=60, progressive=True)
keep(grey, "grey.jpg", quality=90)
keep(color.convert("CMYK"), "cmyk.jpg", quality=95)
for orientation in range(10):
    name = f"orientation{orientation}.jpg"
    color.save(name, quality=95, subsampling=0, exif=exif(orientation))
    with Image.open(name) as image:
        seen[f"seen.{name}"] = np.array(ImageOps.exif_transpose(image))
    if orientation in (0, 1, 3, 6, 8):
        assert (seen[f"seen.{name}"] == decode_image(name)).all()

keep(color, "lossless.webp", lossless=True)
keep(color, "lossy.webp", quality=80)
keep(rgba, "rgba.webp", lossless=True, exact=True)
keep(color, "oriented.webp", lossless=True, exif=exif(8))
color.save("animated.webp", save_all=True, append_images=[picture(11, 17, 6)], lossless=True)

photo = picture(90, 140, 7)
grain = np.random.default_rng(8).integers(-20, 21, (90, 140, 3))
photo = Image.fromarray((np.array(photo).astype(int) + grain).clip(0, 255).astype(np.uint8))
keep(photo, "photo.png")
for crf in (18, 33):
    seen[f"crf.{crf}"] = preprocess(np.array(photo), crf)
seen["crf.odd"] = preprocess(np.array(photo)[:77, :121], 33)

save_file({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in seen.items()}, "seen.safetensors",
          metadata={"source": "the LTX-2 Python reference, commit 400fd31"})
