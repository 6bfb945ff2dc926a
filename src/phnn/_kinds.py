"""What files are that people take for models."""

# by the end of their names
KINDS = {
    **dict.fromkeys(
        [".pt", ".pth", ".bin", ".pkl"],
        "is a pickle of torch, which may run code when it is opened; load it in a function of "
        "yours, put its weights into a model, and save that with phnn.save",
    ),
    **dict.fromkeys(
        [".onnx", ".pt2"], "is an exported program, not a model; give the model it was made from"
    ),
    **dict.fromkeys([".npy", ".npz"], "is an array, not a model"),
    **dict.fromkeys([".yaml", ".yml"], "is a recipe, not a model; phnn train makes one of it"),
    **dict.fromkeys([".wav", ".flac", ".mp3", ".ogg"], "is a recording, not a model"),
    **dict.fromkeys([".png", ".jpg", ".jpeg", ".webp"], "is an image, not a model"),
    **dict.fromkeys([".csv", ".json", ".txt", ".md", ".html"], "is a text file, not a model"),
}
