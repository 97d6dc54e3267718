"""How much memory compatibility needs: 0, 5, 10, 20, 50 images per class × methods (the paper's Figure 3).

    python studies/memory_size.py
    python studies/memory_size.py --methods er cl2r --sizes 0 20 --seeds 0 1 2

Memory matters from the second task on, so all sizes with one classifier share their first task: a seed trains
2 + 4·5·(T−1) links. Cost on two cores with the default preset: about 15 minutes per seed; `--plan` says more.
"""

from cl2r.cli.study import compare_methods

main = compare_methods(__file__, __doc__, "memory.per_class", "--sizes", "Images per class in memory.")

if __name__ == "__main__":
    main.run_program()
