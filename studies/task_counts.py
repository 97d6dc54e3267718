"""How compatibility falls with the number of tasks: T = 2, 3, 5, 10 × methods (the paper's tables by task count).

    python studies/task_counts.py
    python studies/task_counts.py --methods er cl2r --counts 2 5 --seeds 0 1 2

Task counts share nothing: each has other class lists from the first task on. Methods with the same classifier share
their first task. Cost on two cores with the default preset: about 15 minutes per seed; `--plan` says more.
"""

from cl2r.cli.study import compare_methods

main = compare_methods(__file__, __doc__, "scenario.n_tasks", "--counts", "Numbers of tasks.")

if __name__ == "__main__":
    main.run_program()
