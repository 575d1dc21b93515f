"""The small walk whose page is tested, and what a hand does on a page."""

SMALL = ["--crop", "8,8", "--sizes", "a=2,b=2,c=3", "--kernel", "2", "--stride", "1,2"]
SMALL += ["--padding", "1,0", "--no-pictures"]


def press(driver, *keys):
    """Press keys one after the other."""
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def hover(driver, name, flat):
    """Move the mouse to the middle of a cell."""
    from selenium.webdriver import ActionChains

    canvas = driver.find_elements("css selector", f'[data-name="{name}"] canvas')[1]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    box = driver.execute_script("return walk.maps[arguments[0]].box(arguments[1])", name, flat)
    size = canvas.rect
    right = box[0] + box[2] / 2 - size["width"] / 2
    down = box[1] + box[3] / 2 - size["height"] / 2
    ActionChains(driver).move_to_element_with_offset(canvas, round(right), round(down)).perform()
