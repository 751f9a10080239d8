# Makes .venv beside this folder and installs lsgen into it; sourced by the other scripts. Quick when nothing changed.
#   install_lsgen EXTRA     EXTRA is "" or "[test]"
install_lsgen() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  local python=${PYTHON:-python3} stamp=".venv/.installed$1"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "lsgen needs Python 3.10 or newer; set PYTHON to one" >&2
    exit 2
  }
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ constraints.txt -nt "$stamp" ]; then
    echo "installing lsgen$1 into .venv (a few minutes the first time)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$1"
    touch "$stamp"
  fi
}
