"""TensorFlow: nothing is planned for it, plans of whole ops are written."""

from loadmaster.systems.registry import System, WrittenForm

SYSTEMS = (
    System(
        "tensorflow",
        form=WrittenForm(
            "loadmaster.systems.tensorflow.write:tensorflow", "TensorFlow device per node (JSON)"
        ),
        packages=("tensorflow", "tensorflow-cpu"),
    ),
    System(
        "tensorflow-graph",
        form=WrittenForm(
            "loadmaster.systems.tensorflow.write:tensorflow_graph",
            "TensorFlow GraphDef with devices (.pb)",
            is_file=True,
        ),
        packages=("tensorflow", "tensorflow-cpu"),
    ),
)
