"""Tokens of an image by the rules of model families: pure functions of its width and height.

Each rule follows what SGLang 0.5.23 runs for the family, its own processor or that of transformers 5,
as its docstring names. The few tokens that mark an image's start and end are left out where they do
not grow with it.
"""

import math
from dataclasses import dataclass
from typing import Protocol


class ImageRule(Protocol):
    """How a family turns pixels into tokens."""

    def __hash__(self) -> int:
        """What it gives may be remembered."""

    def tokens(self, width: int, height: int) -> int:
        """Tokens of an image of `width` x `height` pixels, both at least 1."""


@dataclass(frozen=True, slots=True)
class Patches:
    """For families that are not known: one token a patch. 28-pixel patches bound most from above."""

    patch_pixels: int = 28
    least_tokens: int = 64
    most_tokens: int = 16_384  # SGLANG_IMAGE_MAX_PIXELS / 28^2

    def tokens(self, width: int, height: int) -> int:
        tokens = math.ceil(width / self.patch_pixels) * math.ceil(height / self.patch_pixels)
        return min(max(tokens, self.least_tokens), self.most_tokens)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for every image: Gemma 3 (256) resizes all to one square; its pan and scan is off."""

    image_tokens: int = 256

    def tokens(self, width: int, height: int) -> int:
        return self.image_tokens


@dataclass(frozen=True, slots=True)
class ResizedPatches:
    """Qwen2-VL to Qwen3.6 and GLM-4V: both sides rounded to whole patches, the area kept in bounds.

    transformers, `smart_resize` in image_processing_qwen2_vl.py and image_processing_glm4v.py, the
    latter with an area that counts two frames. A patch here is what becomes one token: patch size
    times merge size.
    """

    patch_pixels: int = 28
    least_pixels: int = 56 * 56
    most_pixels: int = 16_384 * 28 * 28

    def tokens(self, width: int, height: int) -> int:
        patch = self.patch_pixels
        # Python's rounding to the even neighbour is theirs as well.
        columns, rows = round(width / patch), round(height / patch)
        area = columns * rows * patch * patch
        if area > self.most_pixels:
            shrink = math.sqrt(width * height / self.most_pixels)
            columns, rows = (max(1, math.floor(side / shrink / patch)) for side in (width, height))
        elif area < self.least_pixels:
            grow = math.sqrt(self.least_pixels / (width * height))
            columns, rows = (math.ceil(side * grow / patch) for side in (width, height))
        # what is flatter than 1:200 the server refuses
        return min(max(1, columns) * max(1, rows), max(1, self.most_pixels // patch**2))


@dataclass(frozen=True, slots=True)
class ShrunkPatches:
    """Kimi-VL, Kimi K2.5: never enlarged, shrunk to a number of patches, padded to whole tokens.

    SGLang, `navit_resize_config` in multimodal/processors/kimi_k25.py; Kimi-VL's own
    image_processing_kimi_vl.py does the same with a lower limit.
    """

    patch_pixels: int = 14
    merged_patches: int = 2
    most_patches: int = 16_384
    most_patches_a_side: int = 512

    def tokens(self, width: int, height: int) -> int:
        patch, side_pixels = self.patch_pixels, self.most_patches_a_side * self.patch_pixels
        patches = max(1, width // patch) * max(1, height // patch)
        scale = min(1.0, math.sqrt(self.most_patches / patches), side_pixels / width, side_pixels / height)
        token = patch * self.merged_patches
        columns, rows = (math.ceil(max(1, int(side * scale)) / token) for side in (width, height))
        return columns * rows


@dataclass(frozen=True, slots=True)
class ClosestTiles:
    """InternVL: the grid of square tiles whose shape is closest, and a thumbnail beside several.

    SGLang, `dynamic_preprocess` in multimodal/processors/internvl.py: of grids of the same shape the
    one with most tiles, up to 12 whatever the model's directory says.
    """

    tile_tokens: int = 256  # (448 / 14)^2 patches, a quarter of them tokens
    most_tiles: int = 12

    def tokens(self, width: int, height: int) -> int:
        shape = width / height
        grids = (
            (columns, rows)
            for columns in range(1, self.most_tiles + 1)
            for rows in range(1, self.most_tiles // columns + 1)
        )
        columns, rows = min(grids, key=lambda grid: (abs(shape - grid[0] / grid[1]), -grid[0] * grid[1]))
        tiles = columns * rows
        return self.tile_tokens * (tiles + 1 if tiles > 1 else 1)


@dataclass(frozen=True, slots=True)
class FittingTiles:
    """Llama 4: the canvas of square tiles that needs least scaling, a global tile beside several.

    transformers, `get_best_fit` in image_processing_llama4.py and `_prompt_split_image` in
    processing_llama4.py, with its separators between the tiles.
    """

    tile_pixels: int = 336
    tile_tokens: int = 144  # (336 / 14)^2 patches, a quarter of them tokens
    most_tiles: int = 16
    largest_canvas: bool = False

    def tokens(self, width: int, height: int) -> int:
        scales = {
            (columns, rows): min(columns * self.tile_pixels / width, rows * self.tile_pixels / height)
            for columns in range(1, self.most_tiles + 1)
            for rows in range(1, self.most_tiles // columns + 1)
        }
        enlarging = [scale for scale in scales.values() if scale >= 1]
        if enlarging:
            chosen = max(enlarging) if self.largest_canvas else min(enlarging)
        else:
            chosen = max(scales.values())
        canvases = [grid for grid, scale in scales.items() if scale == chosen]
        columns, rows = min(canvases, key=lambda grid: grid[0] * grid[1])
        if columns * rows == 1:
            return self.tile_tokens
        separators = rows * (columns - 1) + rows
        return self.tile_tokens * (columns * rows + 1) + separators


@dataclass(frozen=True, slots=True)
class BoundedRows:
    """Pixtral, Mistral 3: shrunk to a longest side, rows of patches, and a token that ends each row.

    SGLang, `_get_image_nrows` in multimodal/processors/pixtral.py; transformers,
    image_processing_pixtral.py. A patch here is what becomes one token.
    """

    patch_pixels: int = 28
    longest_pixels: int = 1_540

    def tokens(self, width: int, height: int) -> int:
        shrink = max(1.0, width / self.longest_pixels, height / self.longest_pixels)
        columns, rows = (
            math.ceil(max(1, math.floor(side / shrink)) / self.patch_pixels) for side in (width, height)
        )
        return rows * (columns + 1)


@dataclass(frozen=True, slots=True)
class FilledPatches:
    """Gemma 4: scaled, up or down, to as many tokens as are allowed, both sides rounded down to whole ones.

    transformers, `get_aspect_ratio_preserving_size` in image_processing_gemma4.py.
    """

    most_tokens: int = 280

    def tokens(self, width: int, height: int) -> int:
        scale = math.sqrt(self.most_tokens / (width * height))
        columns, rows = math.floor(width * scale), math.floor(height * scale)
        if columns == 0:
            return min(height // width, self.most_tokens)
        if rows == 0:
            return min(width // height, self.most_tokens)
        return columns * rows


@dataclass(frozen=True, slots=True)
class Slices:
    """MiniCPM-V: an overview and up to nine slices, each the same number of tokens.

    SGLang, `_get_sliced_grid` in multimodal/processors/minicpmv4_6.py, which follows the models' own
    image_processing_minicpmv.py. 4.6 lets the number vary a little with the shape.
    """

    slice_pixels: int = 448
    slice_tokens: int = 64
    most_slices: int = 9

    def tokens(self, width: int, height: int) -> int:
        wanted = min(math.ceil(width * height / self.slice_pixels**2), self.most_slices)
        if wanted <= 1:
            return self.slice_tokens
        shape = math.log(width / height)
        grids = [
            (columns, count // columns)
            for count in (wanted - 1, wanted, wanted + 1)
            if 1 < count <= self.most_slices
            for columns in range(1, count + 1)
            if count % columns == 0
        ]
        columns, rows = min(grids, key=lambda grid: abs(shape - math.log(grid[0] / grid[1])))
        # each between two marks
        return (self.slice_tokens + 2) * (columns * rows + 1)
